"""A damaged file is renamed, its readable records are kept in use, and a new store is made."""

from __future__ import annotations

import os
import random
import sqlite3
import warnings
from pathlib import Path

import pytest
from stored_records import NEW, RECORDS, made, save_all

from bestof.errors import BestofWarning, StoreError
from bestof.selection.record import Record
from bestof.selection.store.sqlite import SqliteStore


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


@pytest.mark.parametrize(
    "row", ["samples = '[1.0'", "samples = '[[1]]'", "children = '[1]'", "samples = x'ff'"]
)
def test_a_row_that_cannot_be_understood_is_damage(tmp_path: Path, whole: bytes, row: str) -> None:
    path = tmp_path / "decisions.sqlite"
    path.write_bytes(whole)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(f"UPDATE evidence SET {row} WHERE id = 3")
    connection.close()
    found, told = use(path)
    assert found == RECORDS[:1]
    assert len(told) == 1
    assert "damaged-1" in told[0]


def test_text_that_is_no_utf8_is_damage(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "decisions.sqlite"
    path.write_bytes(whole)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE evidence SET version = CAST(x'ff' AS TEXT) WHERE id = 1")
    connection.close()
    found, told = use(path)
    assert found == []
    assert len(told) == 1


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
