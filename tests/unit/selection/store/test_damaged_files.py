"""A damaged file is renamed, its readable records are kept in use, and a new store is made."""

from __future__ import annotations

import fcntl
import math
import os
import random
import sqlite3
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from stored_records import NEW, RECORDS, made, save_all

from bestof.errors import BestofWarning, StoreError
from bestof.selection.store import sqlite_schema as schema
from bestof.selection.store.database import Unavailable
from bestof.selection.store.lock_file import export_records, import_pins
from bestof.selection.store.record import Pin, Record
from bestof.selection.store.sqlite import SqliteStore
from bestof.selection.store.sqlite_database import SqliteDatabase


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return made(tmp_path_factory.mktemp("whole") / "decisions.sqlite")


def use(path: Path) -> tuple[list[Record], list[str]]:
    """Load everything and save one more, as an engine would; what was read, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = SqliteStore(path)
        try:
            found = [store.load(*record.key) for record in RECORDS]
            store.pinned("s", "p")
            save_all(store, [NEW])
            assert store.load(*NEW.key) == NEW
            store.records()
        finally:
            store.close()
    return [record for record in found if record is not None], [str(one.message) for one in caught]


def save_and_load(path: Path) -> Record | None:
    """Save NEW, and return what a store says that it has saved."""
    store = SqliteStore(path)
    assert save_all(store, [NEW])
    read = store.load(*NEW.key)
    store.close()
    return read


def test_a_file_cut_short_anywhere_is_set_aside_and_rebuilt(tmp_path: Path, whole: bytes) -> None:
    damaged = 0
    for length in range(512, len(whole), 512):
        folder = tmp_path / str(length)
        folder.mkdir()
        path = folder / "decisions.sqlite"
        path.write_bytes(whole[:length])
        found, told = use(path)
        assert all(record in RECORDS for record in found)
        aside = path.with_name("decisions.sqlite.damaged-1")
        if aside.exists():
            damaged += 1
            assert len(told) == 1
            assert str(path) in told[0]
            assert str(aside) in told[0]
            assert aside.read_bytes()[:512] == whole[:512], "what was set aside is what lay there"
        else:
            assert told == []
        assert use(path)[1] == [], "the new store is whole"
    assert damaged >= len(whole) // 512 // 2


def test_random_bytes_overwritten_never_raise_anything_but_store_errors(
    tmp_path: Path, whole: bytes
) -> None:
    random.seed(5)
    for case in range(150):
        folder = tmp_path / str(case)
        folder.mkdir()
        path = folder / "decisions.sqlite"
        content = bytearray(whole)
        # Half of the cases hit the first page, where the header and the schema are.
        start = random.randrange(512 if case % 2 else len(content))
        for offset in range(start, min(start + random.choice((1, 4, 64, 3000)), len(content))):
            content[offset] = random.randrange(256)
        path.write_bytes(content)
        try:
            _, told = use(path)
        except StoreError:  # the header no longer says that the file is ours
            assert path.read_bytes() == content, f"case {case}: a file that was refused was changed"
            continue
        damaged = list(folder.glob("*.damaged-*[0-9]"))
        assert len(told) <= 1 + len(damaged), f"case {case}: {told}"
        for target in damaged:
            assert any(str(target) in text for text in told), (
                f"case {case}: {target} was set aside in silence"
            )


ORDERED = sorted(RECORDS, key=lambda record: record.key)
UNREADABLE = [
    *("samples = '[1.0'", "samples = '[[1]]'", "samples = x'ff'", "samples = '{}'"),
    *("samples = '[NaN]'", "samples = '[-1]'", "samples = '[true]'", "samples = '[1e400]'"),
    f"samples = '[{'9' * 400}]'",
    f"samples = '[{'9' * 5000}]'",
    f"samples = '{'[' * 20_000}'",
    *("children = '[1]'", "children = '[[1, 2]]'", "children = '[[\"a\", null]]'"),
    *("disqualified = x'00'", "alternative = x'41'", "version = CAST(x'ff' AS TEXT)"),
]


@pytest.mark.parametrize("row", UNREADABLE)
def test_a_row_that_cannot_be_read_is_left_out_told_once_and_replaced(
    tmp_path: Path, whole: bytes, row: str
) -> None:
    path = tmp_path / "decisions.sqlite"
    path.write_bytes(whole)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(f"UPDATE evidence SET {row} WHERE id IN (3, 5)")
    connection.close()
    found, told = use(path)
    assert found == [RECORDS[0], *RECORDS[3:]]
    assert len(told) == 1
    assert "the record of s, problem (1,) is damaged; bestof searches again" in told[0]
    store = SqliteStore(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BestofWarning)
        assert save_all(store, RECORDS[1:3])
    store.close()
    found, told = use(path)
    assert told == []
    assert [set(one.evidence) for one in found] == [set(one.evidence) for one in RECORDS]
    assert [one.decision for one in found] == [one.decision for one in RECORDS]
    assert not list(tmp_path.glob("*damaged*"))


@pytest.mark.parametrize(
    "row",
    [
        *("updated = 'soon'", "updated = 9e999", "decision = x'61'", "problem = x'28'"),
        *("host = CAST(x'ff' AS TEXT)", f"updated = '{'9' * 400}'"),
    ],
)
def test_a_record_that_cannot_be_read_is_left_out(tmp_path: Path, whole: bytes, row: str) -> None:
    path = tmp_path / "decisions.sqlite"
    path.write_bytes(whole)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(f"UPDATE record SET {row} WHERE id = 2")
    connection.close()
    found, told = use(path)
    assert found == [RECORDS[0], *RECORDS[2:]]
    assert len(told) <= 1, "a row under another key may be met by no one"
    store = SqliteStore(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BestofWarning)
        undecided = Record(*RECORDS[1].key, None, RECORDS[1].evidence, 7.0)
        assert save_all(store, [undecided])
        loaded = store.load(*undecided.key)
        assert loaded is not None
        assert (loaded.evidence, loaded.updated) == (undecided.evidence, 7.0)
        assert loaded.decision in (None, "a")
        assert save_all(store, RECORDS[1:2])
        assert store.load(*RECORDS[1].key) == RECORDS[1]
        assert len(store.records()) == len(RECORDS) + 1
        assert store.clear() >= len(RECORDS)
    store.close()
    assert not list(tmp_path.glob("*damaged*"))


@pytest.mark.parametrize(
    "pin",
    [
        *("'s', NULL, NULL, x'61'", "x'73', NULL, NULL, 'a'", "'s', x'', NULL, 'a'"),
        *("'s', NULL, x'ff', 'a'", "'s', NULL, NULL, CAST(x'ff' AS TEXT)"),
    ],
)
def test_a_pin_that_is_no_text_is_left_out(tmp_path: Path, whole: bytes, pin: str) -> None:
    path = tmp_path / "decisions.sqlite"
    path.write_bytes(whole)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(f"INSERT INTO pin VALUES ({pin}), ('s', '(1,)', NULL, 'b')")
    connection.close()
    store = SqliteStore(path)
    with pytest.warns(
        BestofWarning, match="the pin of .* is damaged; bestof searches again"
    ) as told:
        assert store.contents() == (ORDERED, [Pin("s", "b", "(1,)", None)])
    assert len(told) == 1
    assert store.pinned("s", "(1,)") == "b"
    assert store.pinned("s", "(2,)") is None
    store.close()
    assert not list(tmp_path.glob("*damaged*"))


def test_the_second_pin_of_one_place_is_left_out(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "decisions.sqlite"
    path.write_bytes(whole)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("INSERT INTO pin VALUES ('s', NULL, NULL, 'a'), ('s', NULL, NULL, 'b')")
    connection.close()
    store = SqliteStore(path)
    with pytest.warns(BestofWarning, match="a second pin of s is damaged") as told:
        records, pins = store.contents()
    assert len(told) == 1
    assert len(pins) == 1
    assert import_pins(export_records(records, pins)) == pins
    assert store.pinned("s", "(1,)") == pins[0].alternative
    store.pin("s", "c")
    assert store.pins() == [Pin("s", "c")]
    store.close()


def test_every_damaged_file_is_kept_under_a_name_of_its_own(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "decisions.sqlite"
    for number in (1, 2, 3):
        path.write_bytes(whole[:8192])
        assert f"damaged-{number}'" in use(path)[1][0]
    assert len(list(tmp_path.glob("*.damaged-[0-9]"))) == 3


def test_two_stores_that_meet_the_same_damage_set_it_aside_once(
    tmp_path: Path, whole: bytes
) -> None:
    path = tmp_path / "decisions.sqlite"
    path.write_bytes(whole)
    first, second = SqliteStore(path), SqliteStore(path)
    assert first.load(*RECORDS[0].key) == second.load(*RECORDS[0].key) == RECORDS[0]
    first.close()
    second._worker.stop(60.0)
    path.write_bytes(whole[:8192])
    third = SqliteStore(path)
    with pytest.warns(RuntimeWarning, match="damaged-1"):
        save_all(third, [NEW])
    save_all(second, [RECORDS[1]])
    assert [record.key for record in third.records()] == [RECORDS[1].key, NEW.key]
    third.close()
    second.close()
    assert not list(tmp_path.glob("*damaged-2"))


def test_a_store_whose_file_was_deleted_goes_on_with_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    store = SqliteStore(path)
    save_all(store, RECORDS[:1])
    for file in tmp_path.iterdir():
        file.unlink()
    store.save(RECORDS[1])
    store.close()
    again = SqliteStore(path)
    assert again.records() == [RECORDS[1]]
    again.close()


def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    path.touch()
    assert use(path) == ([], [])
    assert use(path) == ([], [])


def test_a_database_without_tables_is_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    assert path.stat().st_size > 0
    assert use(path) == ([], [])


@pytest.mark.parametrize("size", [0, 100, 5000, 8192])
def test_a_file_that_is_cut_while_in_use_is_set_aside(
    tmp_path: Path, whole: bytes, size: int
) -> None:
    path = tmp_path / "decisions.sqlite"
    path.write_bytes(whole)
    store = SqliteStore(path)
    assert store.load(*RECORDS[0].key) == RECORDS[0]
    os.truncate(path, size)
    with pytest.warns(RuntimeWarning, match=f"was cut from {len(whole)} to {size}") as told:
        assert save_all(store, [NEW])
    assert len(told) == 1
    store.close()
    assert path.with_name("decisions.sqlite.damaged-1").exists()
    again = SqliteStore(path)
    assert again.records() == [NEW]
    again.close()


OVERWRITTEN: dict[str, Callable[[bytes], bytes]] = {
    "99 zeros": lambda whole: bytes(99),
    "100 zeros": lambda whole: bytes(100),
    "512 zeros": lambda whole: bytes(512),
    "zeros of its length": lambda whole: bytes(len(whole)),
    "zeros beyond its length": lambda whole: bytes(2 * len(whole)),
    "zeros over its first half": lambda whole: bytes(len(whole) // 2) + whole[len(whole) // 2 :],
    "zeros over its header": lambda whole: bytes(100) + whole[100:],
    "zeros over its identity": lambda whole: whole[:68] + bytes(4) + whole[72:],
    "ones over its identity": lambda whole: whole[:68] + b"\xff" * 4 + whole[72:],
    "zeros over its schema": lambda whole: whole[:100] + bytes(3996) + whole[4096:],
    "zeros over its last page": lambda whole: whole[:-4096] + bytes(4096),
    "a part of its header": lambda whole: whole[:10],
    "the header alone": lambda whole: whole[:100],
    "half a page": lambda whole: whole[:2048],
    "text": lambda whole: b"overwritten\n" * 9,
    "two letters": lambda whole: b"x\n",
    "a page of text": lambda whole: b"t" * 4096,
    "random bytes": lambda whole: random.Random(5).randbytes(5000),
}


@pytest.mark.parametrize("kind", OVERWRITTEN)
@pytest.mark.parametrize("name", ["decisions.sqlite", "decisions"])
@pytest.mark.skipif(sys.platform != "linux", reason="a name without ending needs attributes")
def test_a_store_that_was_overwritten_is_set_aside_once_and_kept(
    tmp_path: Path, whole: bytes, kind: str, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(whole)
    assert use(path)[1] == []  # this marks it
    damaged = OVERWRITTEN[kind](path.read_bytes())
    path.write_bytes(damaged)  # the same file: its mark stays
    found, told = use(path)
    assert [one for one in tmp_path.iterdir() if ".damaged-" in one.name] == [
        path.with_name(f"{name}.damaged-1")
    ], told
    assert path.with_name(f"{name}.damaged-1").read_bytes() == damaged
    assert len(told) == 1
    assert "damaged-1" in told[0]
    assert found == [] or kind == "zeros over its last page"
    again = SqliteStore(path)
    assert again.load(*NEW.key) == NEW, "the new store is whole, and the next run starts warm"
    again.close()
    assert len(list(tmp_path.glob("*.damaged-*"))) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="links of POSIX")
def test_a_link_to_a_damaged_store_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "d.sqlite", tmp_path / "decisions"
    target.write_bytes(bytes(5000))
    link.symlink_to(target)
    _, told = use(link)
    assert len(told) == 1
    assert link.is_symlink()
    assert target.with_name("d.sqlite.damaged-1").read_bytes() == bytes(5000)
    assert use(target)[1] == []


def test_a_value_that_a_table_refuses_is_no_damage(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "decisions.sqlite"
    path.write_bytes(whole)
    database = SqliteDatabase(path)
    with pytest.raises(Unavailable, match="NOT NULL"):
        database.write([Record("s", "p", "h", "a", (), math.nan)])
    assert database.records(None) == ORDERED
    database.disconnect()
    assert not list(tmp_path.glob("*damaged*"))


def test_a_file_that_was_restored_meanwhile_is_not_renamed(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "decisions.sqlite"
    path.write_bytes(whole)
    database = SqliteDatabase(path)
    assert database.records(None) == ORDERED
    real = schema.read_records

    def damaged(*_: object) -> list[Record]:
        monkeypatch.setattr(schema, "read_records", real)
        raise sqlite3.DatabaseError("database disk image is malformed")

    monkeypatch.setattr(schema, "read_records", damaged)
    with pytest.raises(Unavailable, match="malformed"):
        database.records(None)
    assert database.records(None) == ORDERED
    database.disconnect()
    assert not list(tmp_path.glob("*damaged*"))


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_damage_is_met_again_while_another_process_has_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"overwritten" * 999)
    database = SqliteDatabase(path)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_SH)
        with pytest.raises(Unavailable, match="another process opens the store") as refused:
            database.write(RECORDS[:1])
        assert refused.value.busy
    finally:
        os.close(folder)
    database.write(RECORDS[:1])
    assert database.records(None) == RECORDS[:1]
    database.disconnect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_that_meet_one_damage_rename_no_new_file(tmp_path: Path, whole: bytes) -> None:
    for case in range(5):
        path = tmp_path / f"{case}.sqlite"
        path.write_bytes(b"overwritten" * 999)
        children = []
        for number in range(6):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    warnings.simplefilter("ignore")
                    store = SqliteStore(path)
                    store.save(Record("s", f"({number},)", "h", "a", RECORDS[0].evidence, 1.0))
                    status = not store.flush(60.0)
                    store.close()
                finally:
                    os._exit(status)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
        store = SqliteStore(path)
        assert len(store.records()) == 6
        store.close()
        assert len(list(tmp_path.glob(f"{case}.sqlite.damaged-*"))) == 1


def test_a_claimed_path_with_anything_else_in_it_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    path.write_text("overwritten")
    store = SqliteStore(path, claimed=True)
    with pytest.warns(RuntimeWarning, match="damaged-1"):
        save_all(store, [NEW])
    assert store.records() == [NEW]
    store.close()
    assert path.with_name("decisions.sqlite.damaged-1").read_text() == "overwritten"


@pytest.mark.parametrize(
    "damage",
    [
        # A page of an index that is wrong swallows a row, or gives back another one.
        "CREATE TRIGGER loses BEFORE INSERT ON evidence BEGIN SELECT RAISE(IGNORE); END",
        "CREATE TRIGGER loses BEFORE INSERT ON record BEGIN SELECT RAISE(IGNORE); END",
        "CREATE TRIGGER spoils AFTER INSERT ON evidence "
        "BEGIN UPDATE evidence SET samples = '[9.0]' WHERE id = new.id; END",
        "CREATE TRIGGER spoils AFTER INSERT ON record "
        "BEGIN UPDATE record SET decision = 'a' WHERE id = new.id; END",
        # The evidence of a record whose own row is lost, under the number that comes next.
        "INSERT INTO evidence (record, alternative, version, samples, children) "
        "SELECT max(id) + 1, 'a', '1', '[0.1]', '[]' FROM record",
    ],
)
def test_a_file_that_returns_other_content_than_written_is_renamed(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "decisions.sqlite"
    made(path)
    connection = sqlite3.connect(path)
    connection.execute(damage)
    connection.commit()
    connection.close()
    with pytest.warns(BestofWarning, match="is damaged") as told:
        read = save_and_load(path)
    assert read == NEW
    assert len(told) == 1
    assert (tmp_path / "decisions.sqlite.damaged-1").exists()
