"""A SqliteStore writes in its own thread: what calls wait for, and what happens to saved
records."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pytest

from bestof import BestOf
from bestof.errors import BestofWarning, StoreBusy, StoreError
from bestof.selection.state import registry
from bestof.selection.store import patience, retry
from bestof.selection.store.database import Unavailable
from bestof.selection.store.patience import Patience
from bestof.selection.store.record import Evidence, Record
from bestof.selection.store.sqlite import SqliteStore
from bestof.selection.store.worker import Job

CALL_SECONDS = 0.005


def record(problem: str) -> Record:
    return Record("s", problem, "h", "a", (Evidence("a", "1", (1.0,)),), 1.0)


def filled(path: Path, *problems: str) -> SqliteStore:
    store = SqliteStore(path)
    for problem in problems:
        store.save(record(problem))
    assert store.flush(60.0)
    return store


def locked(path: Path) -> sqlite3.Connection:
    """Another connection that holds the lock for writing."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other


def test_a_save_does_not_wait_for_another_writer(tmp_path: Path) -> None:
    store = filled(tmp_path / "d", "p")
    other = locked(tmp_path / "d")
    store.save(record("q"))  # before the lock is free: waiting for it would never end
    assert store.load("s", "q", "h") == record("q"), "the process itself sees it"
    assert store.contents() == ([record("p"), record("q")], [])
    assert not store.flush(0.05)
    assert other.execute("SELECT count(*) FROM record").fetchone() == (1,)
    other.execute("COMMIT")
    other.close()
    assert store.flush(60.0)
    store.close()
    again = SqliteStore(tmp_path / "d")
    assert again.records() == [record("p"), record("q")]
    again.close()


def save_until_told(store: SqliteStore, told: Sequence[object]) -> None:
    store.save(record("q"))
    while not told:
        store.flush(0.05)


def test_a_locked_store_warns_once_and_is_written_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "_BUSY_FOR_LONG", 0.0)
    store = filled(tmp_path / "d", "p")
    other = locked(tmp_path / "d")
    with pytest.warns(RuntimeWarning, match=r"locked.* wait in memory") as told:
        save_until_told(store, told)
    assert not store.flush(0.05)
    store.save(record("r"))
    assert len(told) == 1
    assert os.path.basename(told[0].filename) == os.path.basename(__file__)
    other.close()
    assert store.flush(60.0)
    assert len(store.records()) == 3
    store.close()


def test_closing_a_locked_store_reports_lost_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bestof.selection.store.deferred.EXIT_SECONDS", 0.05)
    store = filled(tmp_path / "d", "p")
    other = locked(tmp_path / "d")
    store.save(record("q"))
    with pytest.warns(RuntimeWarning, match=r"could not be written .*decisions are lost: 1"):
        store.close()
    other.close()


class StuckDatabase:
    """Stands in for a database whose file system does not answer: a read is never finished."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store

    def load(self, *key: str) -> None:
        raise Unavailable("the file system does not answer", busy=True)


def test_what_a_call_asks_of_a_stuck_store_waits_below_5_ms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call asks for pins, then for evidence, then perhaps once more; the requested waits are
    added up."""
    monkeypatch.delenv("BESTOF_STORE_WAIT", raising=False)
    store = filled(tmp_path / "d", "p")
    monkeypatch.setattr(store._database, "load", StuckDatabase(store).load)
    monkeypatch.setattr(store._database, "pins", StuckDatabase(store).load)
    waited: list[float] = []
    wait = Job.wait

    def counted(job: Job, seconds: float) -> bool:
        waited.append(seconds)
        return wait(job, seconds)

    monkeypatch.setattr(Job, "wait", counted)
    for call in range(3):
        with pytest.raises(StoreBusy, match="ask again"):
            store.pinned("s", "p", "h")
        for problem in ("p", str(call)):
            with pytest.raises(StoreBusy, match="ask again"):
                store.load("s", problem, "h")
    assert 0.0 < sum(waited) < CALL_SECONDS, "of all three calls: the first answer is still overdue"


def test_the_end_of_the_process_asks_a_locked_store_for_a_second_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path / "d.sqlite", "1")
    store.pin("sum", "a")
    selector = BestOf("sum", [("a", abs), ("b", abs)], lambda x: x, store=store)
    selector(1)
    waits: list[float] = []

    def wait(job: Job, seconds: float) -> bool:
        waits.append(seconds)
        return False

    monkeypatch.setattr(Job, "wait", wait)
    with pytest.warns(BestofWarning, match="does not answer"):
        registry._tell_unmet_orders()
    assert waits
    assert max(waits) <= 1.0


@pytest.mark.parametrize("took", [0.0, 0.0009, 0.0011, 0.0034])
def test_answers_that_take_long_make_the_next_waits_short(
    took: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three reads of one call, each answered after `took` seconds or not at all."""
    monkeypatch.delenv("BESTOF_STORE_WAIT", raising=False)
    now = [100.0]
    monkeypatch.setattr(patience, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    judge, begin = Patience(), now[0]

    def wait(job: Job, seconds: float) -> bool:
        now[0] += min(took, seconds)
        if took <= seconds:
            job.attempt()
        return job.finished

    monkeypatch.setattr(Job, "wait", wait)
    answered = [judge.wait(Job(lambda: None, 1.0)) for _ in range(3)]
    assert answered[0]
    assert now[0] - begin < CALL_SECONDS


def test_a_late_answer_is_given_to_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTOF_STORE_WAIT", "0")
    store = filled(tmp_path / "d", "p")
    found = None
    with pytest.raises(StoreBusy):
        store.load("s", "p", "h")
    while found is None:
        try:
            found = store.load("s", "p", "h")
        except StoreBusy:
            continue
    assert found == record("p")
    store.close()


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "1e9"])
def test_the_error_for_a_wrong_setting_names_the_expectation(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BESTOF_STORE_WAIT", text)
    with pytest.raises(StoreError, match=f"BESTOF_STORE_WAIT: expected seconds .* got '{text}'"):
        SqliteStore(tmp_path / "d")


def test_a_busy_store_leaves_the_generators_of_the_program_alone(tmp_path: Path) -> None:
    store = filled(tmp_path / "d", "p")
    other = locked(tmp_path / "d")
    random.seed(7)
    before = random.getstate()
    store.save(record("q"))
    assert not store.flush(0.1)
    other.close()
    assert store.flush(60.0)
    assert random.getstate() == before
    store.close()


PROGRAM = """
import atexit, multiprocessing, sys
def save(name):
    store.save(Record("s", name, "h", "a", (), 1.0))
atexit.register(save, "late")  # before bestof registers its own exit function, to run after it
from bestof.selection.store.record import Record
from bestof.selection.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
def child():
    save("child")
if __name__ == "__main__":
    save("early")
    if len(sys.argv) > 2:
        process = multiprocessing.get_context(sys.argv[2]).Process(target=child)
        process.start()
        process.join()
        sys.exit(process.exitcode)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=250, check=False
    )


@pytest.mark.parametrize("method", [None, "fork", "spawn"])
def test_the_last_save_is_written_by_the_end_of_the_process(
    tmp_path: Path, method: str | None
) -> None:
    if method == "fork" and not hasattr(os, "fork"):
        pytest.skip("needs fork")
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = [str(tmp_path / "program.py"), str(tmp_path / "d")]
    done = run("-W", "error", *arguments, *([] if method is None else [method]))
    assert (done.returncode, done.stderr) == (0, "")
    store = SqliteStore(tmp_path / "d")
    expected = {"early", "late"} | (set() if method is None else {"child"})
    assert {found.problem for found in store.records()} == expected
    store.close()


def test_a_process_that_ends_with_a_locked_store_reports_lost_decisions(tmp_path: Path) -> None:
    filled(tmp_path / "d", "p").close()
    other = locked(tmp_path / "d")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run(str(tmp_path / "program.py"), str(tmp_path / "d"))
    other.close()
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert done.stderr.count("decisions are lost: 1") == 1, "early"
    assert done.stderr.count("decisions are lost: 2") == 1, "and late"
