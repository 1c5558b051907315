"""A SqliteStore and its process: opening, forking, closing, many writers, death."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from forked_stores import record, save, started, status_of

from bestof.errors import StoreError
from bestof.selection.store import (
    deferred,
    lifetime,
    sqlite_database,
    sqlite_file,
    sqlite_schema,
    worker,
)
from bestof.selection.store.sqlite import SqliteStore

STRESS = Path(__file__).parents[4] / "benchmarks" / "store_stress.py"
POSIX = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def test_the_file_is_made_by_the_first_save_and_no_thread_before(tmp_path: Path) -> None:
    path = tmp_path / "b c" / "decisions.sqlite"
    path.parent.mkdir()
    store = SqliteStore(path)
    assert store.load("s", "p", "h") is None
    assert store.records() == []
    assert store.pins() == []
    assert store._worker._thread is None
    assert list(path.parent.iterdir()) == []
    save(store, "p")
    assert path.is_file()
    assert store.url == f"sqlite:///{path}"
    store.close()


def test_the_file_is_in_wal_mode_and_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    store = SqliteStore(path)
    save(store, "p")
    header = path.read_bytes()[:100]
    assert header[68:72] == b"best", (
        "in the file itself, although the journal was not played into it yet"
    )
    assert header[60:64] == bytes([0, 0, 0, 1])
    assert header[18:20] == bytes([2, 2]), "WAL"
    connection = store._database._connected()
    assert connection.execute("PRAGMA synchronous").fetchone() == (1,), "NORMAL"
    store.close()
    assert [file.name for file in tmp_path.iterdir()] == ["decisions.sqlite"]


def test_another_store_of_the_same_file_sees_the_writes(tmp_path: Path) -> None:
    one, two = SqliteStore(tmp_path / "d"), SqliteStore(tmp_path / "d")
    save(one, "p")
    assert two.load("s", "p", "h") == record("p")
    save(two, "q")
    assert one.records() == [record("p"), record("q")]
    one.close()
    two.close()


def test_a_thread_without_work_ends_and_lets_go_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "IDLE_SECONDS", 0.0)
    others = threading.enumerate()  # those of other stores have work for longer
    store = SqliteStore(tmp_path / "d")
    save(store, "p")
    for thread in threading.enumerate():
        if thread not in others:
            thread.join(60.0)
    assert store._worker._thread is None
    assert [file.name for file in tmp_path.iterdir()] == ["d"], "the journal left with it"
    assert store.load("s", "p", "h") == record("p")
    store.close()


def test_a_program_without_a_thread_to_spare_writes_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    store = SqliteStore(tmp_path / "d")
    save(store, "p")
    assert store.load("s", "p", "h") == record("p")
    store.close()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "d")
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.save(record("p"))


def test_an_unclosed_store_leaves_no_connection_open(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "d")
    save(store, "p")
    assert store._worker.stop(60.0)
    del store
    assert [file.name for file in tmp_path.iterdir()] == ["d"], (
        "the last connection that closes removes the journal"
    )


@POSIX
def test_a_forked_child_and_its_parent_go_on_with_connections_of_their_own(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "d")
    store.save(record("before"))

    def work() -> None:
        assert store._database._connection is None
        assert store.load("s", "before", "h") == record("before"), "written before the fork"
        save(store, "child")
        store.close()

    assert status_of(started(work)) == 0
    save(store, "parent")
    assert store.records() == [record("before"), record("child"), record("parent")]
    store.close()


@POSIX
def test_a_fork_that_python_does_not_see_never_touches_the_connection_of_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "d")
    save(store, "p")
    parents = store._database._connected()
    monkeypatch.setattr(deferred.os, "getpid", lambda: -1)
    save(store, "q")
    assert store._database._connection is not parents
    # Stores of earlier tests may be there too: all of them see the other process identifier.
    assert parents in sqlite_database._ABANDONED
    parents.execute("SELECT 1")
    assert store.records() == [record("p"), record("q")]
    store.close()
    sqlite_database._ABANDONED.remove(parents)
    parents.close()


@POSIX
def test_the_child_of_a_process_whose_store_is_stuck_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifetime, "FORK_SECONDS", 0.0)
    store = SqliteStore(tmp_path / "d")
    held = threading.Event()
    write = store._database.write
    monkeypatch.setattr(
        store._database, "write", lambda records: (held.wait(60.0), write(records))[1]
    )
    store.save(record("parent"))

    def work() -> None:
        with pytest.warns(RuntimeWarning, match="was in use when this process was forked") as told:
            assert store.load("s", "parent", "h") is None
        store.save(record("child"))
        assert len(told) == 1
        assert store.load("s", "child", "h") is None
        store.close()

    try:
        assert status_of(started(work)) == 0
    finally:
        held.set()
    assert store.flush(60.0)
    assert store.records() == [record("parent")]
    store.close()


@POSIX
@pytest.mark.filterwarnings(
    "ignore:.*multi-threaded:DeprecationWarning"
)  # from Python 3.12 on: what is tried here
def test_a_fork_while_another_thread_saves_neither_blocks_nor_loses(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "d")
    stop = threading.Event()
    saved: list[str] = []

    def save_many() -> None:
        while not stop.is_set():
            name = f"thread {len(saved)}"
            store.save(record(name))
            saved.append(name)
            stop.wait(0.001)  # as fast as a thread can is faster than any file

    thread = threading.Thread(target=save_many)
    thread.start()
    commands = [f"child {number}" for number in range(20)]
    statuses = [
        status_of(started(lambda command=command: save(store, command))) for command in commands
    ]
    stop.set()
    thread.join()
    assert statuses == [0] * 20
    assert store.flush(60.0)
    expected = {*saved, *commands}
    assert {found.problem for found in store.records()} == expected
    store.close()


def test_a_save_while_the_process_ends_is_kept(tmp_path: Path) -> None:
    program = f"""
import atexit
from bestof.selection.store.record import Record
def late():
    store.save(Record("s", "late", "h", "a", (), 1.0))
atexit.register(late)
from bestof.selection.store.sqlite import SqliteStore
store = SqliteStore({str(tmp_path / "d")!r})
store.save(Record("s", "early", "h", "a", (), 1.0))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    store = SqliteStore(tmp_path / "d")
    assert [found.problem for found in store.records()] == ["early", "late"]
    store.close()


@POSIX
def test_a_process_killed_after_a_flush_has_kept_it(tmp_path: Path) -> None:
    def work() -> None:
        save(SqliteStore(tmp_path / "d"), "p")
        os.kill(os.getpid(), signal.SIGKILL)

    assert status_of(started(work)) == signal.SIGKILL
    store = SqliteStore(tmp_path / "d")
    assert store.records() == [record("p")]
    store.close()


@POSIX
@pytest.mark.parametrize("what", [["--processes", "40", "--saves", "5"], ["--kills", "40"]])
def test_nothing_is_lost_under_stress(what: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(STRESS), *what],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


def test_statements_have_no_numbered_placeholders() -> None:
    """Python 3.14 refuses them beside a sequence of values; 3.12 warns."""
    for module in (sqlite_schema, sqlite_database, sqlite_file):
        assert module.__file__ is not None
        assert not re.search(r"\?\d", Path(module.__file__).read_text(encoding="utf-8"))
