"""Files that cannot be written or read: full disks, permissions, missing folders."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stored_records import NEW, RECORDS, made, save_all

from bestof.errors import StoreError
from bestof.selection.store.record import Evidence, Record
from bestof.selection.store.sqlite import SqliteStore


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


def test_clear_removes_records_waiting_in_memory(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    store = SqliteStore(folder / "decisions.sqlite")
    folder.rmdir()
    with pytest.warns(RuntimeWarning, match=r"the store .* does not exist.*in memory"):
        assert not save_all(store, [NEW])
    with pytest.raises(StoreError, match=r"the folder .* does not exist"):
        store.clear()
    folder.mkdir()
    assert store.records() == [NEW]
    assert store.clear() == 1
    assert store.records() == []
    store.close()


def test_the_reason_is_told_once_if_a_folder_is_deleted_in_use(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    store = SqliteStore(folder / "decisions.sqlite")
    assert save_all(store, [NEW])
    shutil.rmtree(folder)
    with pytest.warns(RuntimeWarning, match="was deleted") as told:
        assert not save_all(store, [NEW])
    assert store.load(*NEW.key) == NEW
    assert not store.flush()
    (warning,) = told
    assert re.fullmatch(
        r"the store '.*decisions.sqlite' was deleted while it was in use, with its folder; make "
        r"the folder '.*gone' again; until then, decisions stay in memory",
        str(warning.message),
    )
    with pytest.warns(RuntimeWarning) as told:
        store.close()
    (warning,) = told
    assert re.fullmatch(
        r"the store '.*decisions.sqlite' could not be written; decisions are lost: 1",
        str(warning.message),
    )


def test_a_folder_that_comes_back_gets_what_was_kept(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    store = SqliteStore(folder / "decisions.sqlite")
    assert save_all(store, [NEW])
    shutil.rmtree(folder)
    with pytest.warns(RuntimeWarning, match="was deleted while it was in use"):
        assert not save_all(store, [NEW])
    folder.mkdir()
    assert store.flush()
    store.close()
    again = SqliteStore(folder / "decisions.sqlite")
    assert again.records() == [NEW]
    again.close()


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
        assert save_all(writer, [NEW])
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


def as_user(number: int, work: Callable[[], None]) -> None:
    """Run `work` in a child as this user, whose group has the same number."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(number)
            os.setuid(number)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0, "the child failed; its traceback is above"


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="needs two other users")
@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("writer", ["away", "has it open"])
def test_a_reader_locks_the_owner_out_of_nothing(open_folder: Path, end: str, writer: str) -> None:
    path = open_folder / "decisions.sqlite"
    open_folder.chmod(0o777)

    def make() -> None:
        made(path)
        path.chmod(0o644)

    as_user(1234, make)

    def read() -> None:
        store = SqliteStore(path)
        for record in RECORDS:
            assert store.load(*record.key) == record
        with pytest.warns(RuntimeWarning, match="wait in memory"):
            assert not save_all(store, [NEW])
        assert store.load(*NEW.key) == NEW
        if end == "killed":
            os._exit(0)
        with pytest.warns(RuntimeWarning, match="decisions are lost: 1"):
            store.close()

    def write() -> None:
        store = SqliteStore(path)
        if writer == "has it open":
            assert save_all(store, RECORDS[:1])
        os.write(ready[1], b".")
        assert os.read(go[0], 1) == b"."
        assert save_all(store, RECORDS), "the owner can write"
        store.close()

    ready, go = os.pipe(), os.pipe()
    owner = os.fork()
    if owner == 0:
        status = 1
        try:
            as_user(1234, write)
            status = 0
        finally:
            os._exit(status)
    try:
        assert os.read(ready[0], 1) == b"."
        as_user(65534, read)
        left = {one.stat().st_uid for one in open_folder.iterdir()}
    finally:
        os.write(go[1], b".")
        status = os.waitpid(owner, 0)[1]
    assert left == {1234}, "no file of the reader"
    assert status == 0
    assert [one.name for one in open_folder.iterdir()] == ["decisions.sqlite"]


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="needs other users")
def test_root_and_a_group_leave_journals_that_the_owner_can_write(open_folder: Path) -> None:
    path = open_folder / "decisions.sqlite"
    open_folder.chmod(0o777)
    as_user(1234, lambda: [made(path), path.chmod(0o664), os.chown(path, -1, 1234)][0] and None)

    def work() -> None:
        store = SqliteStore(path)
        assert save_all(store, [NEW])
        os._exit(0)  # the journals stay

    as_root = os.fork()
    if as_root == 0:
        work()
    assert os.waitpid(as_root, 0)[1] == 0
    journal = path.with_name("decisions.sqlite-wal")
    assert journal.exists()
    assert (journal.stat().st_uid, journal.stat().st_gid) == (1234, 1234)
    member = os.fork()
    if member == 0:
        status = 1
        try:
            for one in open_folder.glob("*-*"):
                one.unlink()
            os.setgroups([1234])
            os.setgid(4321)
            os.setuid(4321)
            store = SqliteStore(path)
            assert save_all(store, RECORDS[:1])
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(member, 0)[1] == 0
    assert journal.stat().st_gid == 1234

    def write() -> None:
        store = SqliteStore(path)
        assert save_all(store, RECORDS[1:2])
        store.close()

    as_user(1234, write)


@pytest.mark.skipif(sys.platform == "win32" or os.getuid() != 0, reason="needs another user")
def test_a_journal_of_another_user_is_told_with_what_to_do(open_folder: Path) -> None:
    path = open_folder / "decisions.sqlite"
    open_folder.chmod(0o777)
    as_user(1234, lambda: made(path) and None)
    for ending in ("-wal", "-shm"):
        Path(f"{path}{ending}").touch(mode=0o644)

    def work() -> None:
        store = SqliteStore(path)
        with pytest.warns(RuntimeWarning, match=r"another user has made '.*-wal'.*delete it"):
            assert not save_all(store, [NEW])
        with pytest.warns(RuntimeWarning, match="decisions are lost: 1"):
            store.close()

    as_user(1234, work)


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
