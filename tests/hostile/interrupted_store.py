"""Stores for `interrupted.py`: opened, written, read, merged and closed while interrupted.

Afterwards the same store goes on, and a fresh one reads the file: it is whole, every record whose
write has returned is in it, and no lock is left.
"""

from __future__ import annotations

import gc
import io
import os
import sqlite3
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

from interrupted import BESTOF, Interruption, print_sweeps, sweep

from bestof.cli import store as command
from bestof.errors import StoreBusy
from bestof.selection.store.lock_file import import_records
from bestof.selection.store.record import Evidence, Pin, Record
from bestof.selection.store.sqlite import SqliteStore
from bestof.selection.store.sqlite_database import SqliteDatabase

HOST = "here"


def record(problem: str) -> Record:
    """Return a decided record."""
    evidence = (Evidence("a", "1", (1.0, 2.0)), Evidence("b", "1", (3.0,)))
    return Record("interrupted", problem, HOST, "a", evidence, 1.0)


class World:
    """A folder, and what was written to the store in it."""

    def __init__(self, folder: Path, interruption: Interruption) -> None:
        self.interruption = interruption
        self.folder = folder
        self.path = folder / "store.sqlite"
        self.written: set[str] = set()
        self.removed: set[str] = set()

    def look(self) -> None:
        """Read the file as another process would."""
        gc.collect()
        with closing(sqlite3.connect(self.path, timeout=0.0, isolation_level=None)) as beside:
            beside.execute("BEGIN IMMEDIATE")  # nobody holds a lock
            beside.execute("ROLLBACK")
            assert beside.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        fresh = SqliteDatabase(self.path)
        found = {one.problem for one in fresh.records("interrupted")}
        assert found >= self.written - self.removed, f"lost: {self.written - found}"
        fresh.write([record("later")])
        assert fresh.load("interrupted", "later", HOST) == record("later")
        fresh.disconnect()
        assert not list(self.folder.glob("*damaged*")), "a healthy store was set aside"
        assert not fresh.notices, fresh.notices


def _steps(world: World, store: Callable[[], Any], write: Callable[[Any, list[Record]], object]):
    """Yield the steps of a program; a store is made again if its making was interrupted."""
    made: list[Any] = []

    def it() -> Any:
        if not made:
            made.append(store())
        return made[0]

    def save(*problems: str) -> Callable[[], None]:
        def step() -> None:
            write(it(), [record(one) for one in problems])
            world.written.update(problems)

        return step

    def unite() -> None:
        it().unite([record("4"), record("2")], [Pin("interrupted", "b", "4", None)], theirs=True)
        world.written.update("4")

    yield it
    yield save("1", "2")
    yield lambda: _loaded(it(), "1")
    yield unite
    yield lambda: it().records(None)
    yield lambda: it().pins("interrupted")
    yield lambda: it().unpin("interrupted", "4", None)
    yield lambda: it().clear("another")
    yield save("3")


def _loaded(it: Any, problem: str) -> Record | None:
    """Return a record; a store that is busy says so, and is asked again."""
    for _ in range(6000):
        try:
            return it.load("interrupted", problem, HOST)  # type: ignore[no-any-return]
        except StoreBusy:
            time.sleep(0.01)
    raise AssertionError("the store does not answer")


def _database(world: World) -> None:
    made: list[SqliteDatabase] = []

    def make() -> SqliteDatabase:
        made.append(SqliteDatabase(world.path))
        return made[-1]

    for step in _steps(world, make, lambda it, records: it.write(records)):
        world.interruption.take(step)
    made[-1].write([record("5")])  # the same object goes on
    world.written.add("5")
    assert {one.problem for one in made[-1].records(None)} >= world.written
    world.interruption.take(made[-1].disconnect)
    for one in made:
        one.disconnect()


def _store(world: World) -> None:
    made: list[SqliteStore] = []

    def make() -> SqliteStore:
        made.append(SqliteStore(world.path))
        return made[-1]

    def write(it: SqliteStore, records: list[Record]) -> None:
        for one in records:
            it.save(one)
        assert it.flush(60.0)

    for step in _steps(world, make, write):
        world.interruption.take(step)
    write(made[-1], [record("5")])
    world.written.add("5")
    assert {one.problem for one in made[-1].records(None)} >= world.written
    if not world.interruption.take(made[-1].close):
        made[-1].close()
    for one in made:
        one.close()


def _lock_file(world: World) -> None:
    """Export, import and merge by the command, over a lock file that is there."""
    lock, other = world.folder / "lock.json", world.folder / "other.sqlite"
    first = SqliteStore(world.path)
    first.unite([record("1"), record("2")])
    first.close()
    world.written.update("12")

    def called(*argv: str) -> Callable[[], object]:
        def call() -> int:
            with redirect_stdout(io.StringIO()):
                return command.call([*argv])

        return call

    assert called("export", "--store", str(world.path), str(lock))() == 0
    steps = (
        called("export", "--store", str(world.path), str(lock)),
        called("import", "--store", str(other), str(lock)),
        called("merge", "--store", str(world.path), str(lock)),
    )
    for step in steps:
        world.interruption.take(step)
        assert {one.problem for one in import_records(lock.read_text("utf-8"))} == {"1", "2"}
    assert steps[1]() == 0
    second = SqliteStore(other)
    assert {one.problem for one in second.records()} == {"1", "2"}
    second.close()
    left = {one.name for one in world.folder.iterdir()} - {"lock.json"}
    assert all(".sqlite" in one for one in left), f"left beside the lock file: {left}"


SCENARIOS: dict[str, Callable[[World], None]] = {
    "database": _database,
    "store": _store,
    "lock file": _lock_file,
}


def in_stores(filename: str) -> bool:
    """Return whether a file belongs to stores, or to the command that reads and writes them."""
    return filename.startswith(
        (
            os.path.join(BESTOF, "selection", "store"),
            os.path.join(BESTOF, "cli", "store"),
            os.path.join(BESTOF, "whole_file"),
        )
    )


def faults(name: str, **options: Any) -> tuple[int, list[str]]:
    """Interrupt a scenario at every line, or every so many. Return their number, and faults."""

    def run(interruption: Interruption) -> None:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            world = World(Path(folder), interruption)
            SCENARIOS[name](world)
            world.look()

    return sweep(name, run, in_stores, **options)


if __name__ == "__main__":
    print_sweeps(faults, SCENARIOS, sys.argv[1:])
