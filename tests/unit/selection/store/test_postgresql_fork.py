"""A process with a store on a PostgreSQL server forks: nobody uses the connection of another."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from forked_stores import record, save, started, status_of
from postgresql_stores import read
from stored_records import RECORDS

from bestof.selection.store import deferred, postgresql_database
from bestof.selection.store.postgresql import PostgresqlStore

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

# Children that end as Python programs do: they run exit handlers, and release all objects. `c`: a
# fork of which Python does not know, so that the children have their parent's open connection.
PROGRAM = """
import ctypes, os, sys
from bestof.selection.store.record import Record
from bestof.selection.store import worker
from bestof.selection.store.postgresql import PostgresqlStore

worker.IDLE_SECONDS = 600.0  # or the parent lets go of its connection while slow children run

def record(name):
    return Record("s", name, "h", "a", (), 1.0)

def backend():
    store._database.connect()
    return store._database._session.run("SELECT pg_backend_pid()")

fork = os.fork if sys.argv[2] == "python" else ctypes.PyDLL(None).fork
store = PostgresqlStore(sys.argv[1])
store.save(record("before"))
assert store.flush(60.0)
children = []
before = backend()
for number in range(4):
    child = fork()
    if child == 0:
        if number:  # the first one never uses the store
            store.save(record(f"child {number}"))
        if number == 2:
            assert store.flush(60.0)
            assert backend() != before
            store.close()
        sys.exit(0)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
if sys.argv[2] == "c":
    assert backend() == before, "a child has ended the connection of its parent"
store.save(record("after"))
"""


@pytest.mark.parametrize("fork", ["python", "c"])
def test_children_that_end_leave_the_connection_of_their_parent_alone(url: str, fork: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, url, fork],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    names = {"before", "after", *(f"child {number}" for number in (1, 2, 3))}
    assert {found.problem for found in read(url)} == names


def test_a_parent_and_its_children_read_at_the_same_time(url: str) -> None:
    """If two of them shared a connection, one would get the answers of another."""
    store = PostgresqlStore(url)
    store.unite(RECORDS)

    def read_often(turn: int) -> None:
        records = RECORDS[turn:] + RECORDS[:turn]
        for one in records * 3:
            # `records` asks the server each time; `load` may remember.
            assert store.load(*one.key) == one
            assert store._database.load(*one.key) == one

    children = [started(lambda turn=turn: read_often(turn)) for turn in (5, 10, 15)]
    read_often(0)
    assert [status_of(child) for child in children] == [0, 0, 0]
    assert store.records() == sorted(RECORDS, key=lambda one: one.key)
    store.close()


def test_a_fork_that_python_does_not_see_never_touches_the_connection_of_the_parent(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresqlStore(url)
    save(store, "p")
    parents = store._database._session
    assert parents is not None
    monkeypatch.setattr(deferred.os, "getpid", lambda: -1)
    save(store, "q")
    assert store._database._session is not parents
    # Stores of earlier tests may be there too: all of them see the other process identifier.
    assert parents in postgresql_database._ABANDONED
    assert parents.run("SELECT 1") == [(1,)]
    assert store.records() == [record("p"), record("q")]
    store.close()
    monkeypatch.undo()
    postgresql_database._ABANDONED.remove(parents)
    parents.close()


@pytest.mark.filterwarnings(
    "ignore:.*multi-threaded:DeprecationWarning"
)  # from Python 3.12 on: what is tried here
def test_a_fork_while_another_thread_saves_neither_blocks_nor_loses(url: str) -> None:
    store = PostgresqlStore(url)
    stop = threading.Event()
    saved: list[str] = []

    def save_many() -> None:
        while not stop.is_set():
            name = f"thread {len(saved)}"
            store.save(record(name))
            saved.append(name)
            stop.wait(0.001)

    thread = threading.Thread(target=save_many)
    thread.start()
    names = [f"child {number}" for number in range(8)]
    statuses = [status_of(started(lambda name=name: save(store, name))) for name in names]
    stop.set()
    thread.join()
    assert statuses == [0] * 8
    assert store.flush(60.0)
    assert {found.problem for found in store.records()} == {*saved, *names}
    store.close()
