"""A SqliteStore and its process: opening, forking, closing, many writers, death."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bestof.errors import StoreError
from bestof.selection.record import Evidence, Record
from bestof.selection.store import sqlite
from bestof.selection.store.sqlite import SqliteStore

STRESS = Path(__file__).parents[4] / "benchmarks" / "store_stress.py"
POSIX = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def record(problem: str) -> Record:
    return Record("s", problem, "h", "a", (Evidence("a", "1", (1.0,)),), 1.0)


def status_of(work: Callable[[], object]) -> int:
    """The exit status of a forked child that runs `work`; 1 where it raised."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def test_the_file_and_its_folder_are_made_by_the_first_save(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b c" / "decisions.sqlite"
    store = SqliteStore(path)
    assert store.load("s", "p", "h") is None
    assert store.records() == []
    assert store.pins() == []
    assert not path.parent.exists()
    store.save(record("p"))
    assert path.is_file()
    assert store.url == f"sqlite:///{path}"
    store.close()


def test_the_file_is_in_wal_mode_and_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "decisions.sqlite"
    store = SqliteStore(path)
    store.save(record("p"))
    header = path.read_bytes()[:100]
    assert header[68:72] == b"best", (
        "in the file itself, although the journal was not played into it yet"
    )
    assert header[60:64] == bytes([0, 0, 0, 1])
    assert header[18:20] == bytes([2, 2]), "WAL"
    assert store._connection is not None
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (1,), "NORMAL"
    store.close()
    assert [file.name for file in tmp_path.iterdir()] == ["decisions.sqlite"]


def test_another_store_of_the_same_file_sees_what_was_saved_at_once(tmp_path: Path) -> None:
    one, two = SqliteStore(tmp_path / "d"), SqliteStore(tmp_path / "d")
    one.save(record("p"))
    assert two.load("s", "p", "h") == record("p")
    two.save(record("q"))
    assert one.records() == [record("p"), record("q")]
    one.close()
    two.close()


def test_a_save_waits_for_another_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_SECONDS", 0.0)
    store = SqliteStore(tmp_path / "d")
    store.save(record("p"))
    other = sqlite3.connect(tmp_path / "d", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            other.execute("COMMIT")

    monkeypatch.setattr(sqlite.time, "sleep", wait)
    store.save(record("q"))
    assert len(waits) == 3
    assert store.load("s", "q", "h") == record("q")
    other.close()
    store.close()


def test_a_save_that_waited_too_long_warns_and_is_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_SECONDS", 0.0)
    monkeypatch.setattr(sqlite, "_PATIENCE_SECONDS", 0.0)
    store = SqliteStore(tmp_path / "d")
    store.save(record("p"))
    other = sqlite3.connect(tmp_path / "d", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.warns(RuntimeWarning, match="locked"):
        store.save(record("q"))
    other.execute("COMMIT")
    other.close()
    store.save(record("r"))
    store.close()
    again = SqliteStore(tmp_path / "d")
    assert again.records() == [record("p"), record("q"), record("r")]
    again.close()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "d")
    store.close()
    with pytest.raises(StoreError, match="was closed"):
        store.save(record("p"))


def test_a_store_that_nobody_closed_leaves_no_connection_open(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "d")
    store.save(record("p"))
    del store
    assert [file.name for file in tmp_path.iterdir()] == ["d"], (
        "the last connection that closes removes the journal"
    )


@POSIX
def test_a_forked_child_and_its_parent_go_on_with_connections_of_their_own(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "d")
    store.save(record("before"))
    before = store._connection

    def work() -> None:
        assert store._connection is None
        assert store.load("s", "before", "h") == record("before")
        store.save(record("child"))
        store.close()

    assert status_of(work) == 0
    store.save(record("parent"))
    assert store._connection is not before
    assert store.records() == [record("before"), record("child"), record("parent")]
    store.close()


@POSIX
def test_a_fork_that_python_does_not_see_never_touches_the_connection_of_the_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "d")
    store.save(record("p"))
    parents = store._connection
    assert parents is not None
    monkeypatch.setattr(sqlite.os, "getpid", lambda: -1)
    store.save(record("q"))
    assert store._connection is not parents
    assert [parents] == sqlite._ABANDONED
    parents.execute("SELECT 1")
    assert store.records() == [record("p"), record("q")]
    store.close()
    sqlite._ABANDONED.pop().close()


@POSIX
@pytest.mark.filterwarnings(
    "ignore:.*multi-threaded:DeprecationWarning"
)  # from Python 3.12 on: what is tried here
def test_a_fork_while_another_thread_saves_neither_blocks_nor_loses(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "d")
    stop = threading.Event()
    saved: list[str] = []

    def save() -> None:
        while not stop.is_set():
            name = f"thread {len(saved)}"
            store.save(record(name))
            saved.append(name)

    thread = threading.Thread(target=save)
    thread.start()
    commands = [f"child {number}" for number in range(20)]
    statuses = [
        status_of(lambda command=command: store.save(record(command))) for command in commands
    ]
    stop.set()
    thread.join()
    assert statuses == [0] * 20
    expected = {*saved, *commands}
    assert {found.problem for found in store.records()} == expected
    store.close()


def test_what_is_saved_while_the_process_ends_is_kept(tmp_path: Path) -> None:
    program = f"""
import atexit
from bestof.selection.record import Record
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
def test_a_process_killed_after_a_save_has_kept_it(tmp_path: Path) -> None:
    def work() -> None:
        SqliteStore(tmp_path / "d").save(record("p"))
        os.kill(os.getpid(), signal.SIGKILL)

    assert status_of(work) == signal.SIGKILL
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
