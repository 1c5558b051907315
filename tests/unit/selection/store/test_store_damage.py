"""A SqliteStore over files that are damaged, foreign, too new, read-only or without space."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bestof.errors import BestofWarning, StoreError
from bestof.selection.record import Evidence, Record
from bestof.selection.store.sqlite import SqliteStore

RECORDS = [
    Record(
        "s",
        f"({n},)",
        "h",
        "a",
        (Evidence("a", "1", (1.0, 2.0)), Evidence("b", "1", (3.0,))),
        float(n),
    )
    for n in range(40)
]
NEW = Record("s", "new", "h", "b", (Evidence("b", "1", (3.0,)),), 1.0)


def made(path: Path, records: list[Record] = RECORDS) -> bytes:
    store = SqliteStore(path)
    for record in records:
        store.save(record)
    store.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return made(tmp_path_factory.mktemp("whole") / "decisions.sqlite")


def save_all(store: SqliteStore, records: list[Record]) -> bool:
    """Save, and wait; return whether all was written. (What went wrong is told by then.)"""
    for record in records:
        store.save(record)
    return store.flush(60.0)


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


def _other_application(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA application_id = 77")
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()


def _newer(path: Path) -> None:
    made(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "another application": (_other_application, "another program"),
    "newer schema": (_newer, "schema version 99"),
    "text": (lambda path: path.write_text("select = 'everything'\n" * 50), "no SQLite database"),
    "short text": (lambda path: path.write_text("x"), "no SQLite database"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_ours_is_refused_and_left_untouched(tmp_path: Path, kind: str) -> None:
    make, message = REFUSED[kind]
    path = tmp_path / "decisions.sqlite"
    make(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=message) as caught:
        SqliteStore(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["decisions.sqlite"]


def test_a_database_with_tables_and_without_an_identity_is_refused_by_the_first_use(
    tmp_path: Path,
) -> None:
    path = tmp_path / "decisions.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    before = path.read_bytes()
    store = SqliteStore(path)
    with pytest.warns(RuntimeWarning, match="another program") as told:
        assert not save_all(store, [NEW])
    assert store.load(*NEW.key) == NEW, "and no second warning"
    assert len(told) == 1
    with pytest.raises(StoreError, match="another program"):
        store.pin("s", "a")
    with pytest.warns(RuntimeWarning, match="decisions are lost: 1"):
        store.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (
            "/dev/null",
            "the store must be a regular file, but '/dev/null' is a device; "
            "pass a path such as 'decisions.sqlite'",
        ),
        ("{}", "the store must be a regular file, but '{}' is a folder; pass a path such as '{}/d"),
        ("{}/typo/d", "the store '{}/typo/d' cannot be made: the folder '{}/typo' does not exist"),
    ],
)
def test_a_place_where_no_store_can_be_is_refused(tmp_path: Path, path: str, says: str) -> None:
    with pytest.raises(StoreError) as caught:
        SqliteStore(path.replace("{}", str(tmp_path)))
    assert says.replace("{}", str(tmp_path)) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


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


def test_a_full_disk_warns_once_and_keeps_in_memory_until_there_is_space(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    store = SqliteStore(path)
    save_all(store, RECORDS[:1])
    connection = store._database._connected()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    big = [
        Record("big", str(n), "h", "a", (Evidence("a", "1", (0.1 + n,) * 20),), 1.0)
        for n in range(200)
    ]
    with pytest.warns(RuntimeWarning, match="full") as told:
        assert not save_all(store, big)
    assert not store.flush(), "and no second warning"
    assert len(told) == 1
    assert len(store.records("big")) == 200
    loaded = store.load("big", "199", "h")
    assert loaded is not None
    assert loaded.decision == "a"
    with pytest.raises(StoreError, match="full"):
        store.pin("big", "a" * 100_000)
    connection.execute("PRAGMA max_page_count = 100000")
    assert save_all(store, [NEW])
    store.close()
    again = SqliteStore(path)
    assert len(again.records()) == 202
    again.close()


def test_clear_reaches_what_waits_in_memory(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    store = SqliteStore(folder / "decisions.sqlite")
    folder.rmdir()
    with pytest.warns(RuntimeWarning, match=r"is not used: the store .* does not exist"):
        assert not save_all(store, [NEW])
    with pytest.raises(StoreError, match=r"the folder .* does not exist"):
        store.clear()
    folder.mkdir()
    assert store.records() == [NEW]
    assert store.clear() == 1
    assert store.records() == []
    store.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can reach, unlike pytest's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def unprivileged(work: Callable[[], None]) -> None:
    """Run `work` as a user whom permissions bind: in a child as `nobody` where the tests run as
    root."""
    if os.getuid() != 0:
        work()
        return
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setuid(65534)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0, "the child failed; its traceback is above"


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
@pytest.mark.parametrize("folder_mode", [0o755, 0o555])
@pytest.mark.parametrize("journal", ["checkpointed", "with a journal"])
def test_a_read_only_store_is_read_and_writes_stay_in_memory(
    open_folder: Path, folder_mode: int, journal: str
) -> None:
    path = open_folder / "decisions.sqlite"
    made(path)
    if journal == "with a journal":
        shutil.copytree(open_folder, open_folder / "copy")
        writer = SqliteStore(open_folder / "copy" / "decisions.sqlite")
        writer.save(NEW)
        for ending in ("", "-wal"):
            shutil.copy(open_folder / "copy" / f"decisions.sqlite{ending}", f"{path}{ending}")
        writer.close()
    for file in open_folder.glob("decisions*"):
        file.chmod(0o444)
    open_folder.chmod(folder_mode)

    def work() -> None:
        store = SqliteStore(path)
        for record in RECORDS:
            assert store.load(*record.key) == record
        newer = Record("s", "(0,)", "h", "b", (Evidence("c", "1", (1.0,)),), 9.0)
        with pytest.warns(RuntimeWarning, match="wait in memory") as told:
            assert not save_all(store, [newer, NEW])
        assert len(told) == 1
        assert store.load(*newer.key) == RECORDS[0].absorb(newer)
        assert store.load(*NEW.key) == NEW
        with pytest.raises(StoreError, match="nothing was changed"):
            store.pin("s", "a")
        with pytest.warns(RuntimeWarning, match="decisions are lost: 2"):
            store.close()

    before = path.read_bytes()
    unprivileged(work)
    assert path.read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_a_file_that_may_not_even_be_read_is_a_warning(open_folder: Path) -> None:
    path = open_folder / "decisions.sqlite"
    made(path)
    path.chmod(0)

    def work() -> None:
        store = SqliteStore(path)
        with pytest.warns(RuntimeWarning, match="cannot be read") as told:
            assert store.load(*RECORDS[0].key) is None
        assert not save_all(store, [NEW]), "and no second warning"
        assert len(told) == 1
        assert store.load(*NEW.key) == NEW
        with pytest.warns(RuntimeWarning, match="decisions are lost: 1"):
            store.close()

    unprivileged(work)


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
def test_a_file_that_does_not_give_back_what_was_written_is_set_aside(
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
