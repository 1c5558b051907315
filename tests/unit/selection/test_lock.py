"""A locked process takes recorded decisions, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakSet

import pytest

import bestof
from bestof import Alternative, BestOf
from bestof.errors import BestofWarning, InvalidArgument, StoreError
from bestof.selection.identity.host import host
from bestof.selection.state import lock as state
from bestof.selection.state import registry
from bestof.selection.state.lock_writer import LockWriter
from bestof.selection.store import lock_file
from bestof.selection.store.lock_file import export_records, import_records
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.record import Evidence, Pin, Record


@pytest.fixture(autouse=True)
def _unlocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_selectors", WeakSet())  # those of other tests had trials
    state.set_lock(None)
    yield
    state.set_lock(None)


def selector(version: str = "one version", fails: str = "", **more: Any) -> BestOf:
    """One whose second alternative is the fastest by far."""
    now = [0.0]

    def taking(name: str, seconds: float) -> Callable[[object], str]:
        def called(_problem: object) -> str:
            now[0] += seconds
            if name == fails:
                raise OSError("no such table")
            return name

        return called

    costs = {"loop": 3.0, "table": 1.0, "formula": 2.0}
    alternatives = [
        Alternative(name, taking(name, cost), (version,)) for name, cost in costs.items()
    ]
    return BestOf("toy", alternatives, lambda n: n, clock=lambda: now[0], **more)


def recorded(path: Path, *problems: object, **changes: Any) -> Path:
    """A lock file of a run that has met these problems."""
    store = MemoryStore()
    measured = selector(store=store, policy="rounds:rounds=3")
    for problem in problems:
        for _ in range(20):
            measured(problem)
    records = [
        Record(*(changes.get(name, getattr(one, name)) for name in Record.__slots__))
        for one in store.records()
    ]
    path.write_text(export_records(records))
    return path


def test_what_is_recorded_is_taken_from_the_first_call_on(tmp_path: Path) -> None:
    bestof.use_lock(str(recorded(tmp_path / "lock", 1, 2)))
    locked = selector()
    assert [locked(n) for n in (1, 2, 1, 1)] == ["table"] * 4
    assert (locked.trials, locked.explain(1).source) == (0, "locked")


def test_a_problem_that_is_not_recorded_takes_the_first_alternative(tmp_path: Path) -> None:
    bestof.use_lock(str(recorded(tmp_path / "lock", 1)))
    locked = selector(neighbours=lambda _: [1])
    assert locked(1) == "table"
    assert {locked(7) for _ in range(500)} == {"loop"}
    assert (locked.trials, locked.explain(7).source) == (0, "not in the lock")
    lock = state.current_lock()
    assert lock is not None
    assert lock.missing_lines() == ["toy 7: no record"]


def test_the_lock_decides_again_when_alternatives_change(tmp_path: Path) -> None:
    bestof.use_lock(str(recorded(tmp_path / "lock", 1)))
    locked = selector()
    table = locked.alternatives[1]
    locked.remove("table")
    assert [locked(n) for n in (1, 7)] == ["loop", "loop"]
    locked.add(table)
    assert [locked(n) for n in (1, 7)] == ["table", "loop"]
    assert [locked.explain(n).source for n in (1, 7)] == ["locked", "not in the lock"]
    assert locked.trials == 0


def test_another_number_of_threads_is_named(tmp_path: Path) -> None:
    bestof.use_lock(str(recorded(tmp_path / "lock", "conv threads=2")))
    assert selector()("conv threads=1") == "loop"
    lock = state.current_lock()
    assert lock is not None
    [line] = lock.missing_lines()
    assert line.endswith("recorded with another number of threads: threads=2")


def test_no_store_is_opened_and_nothing_is_written(tmp_path: Path) -> None:
    path = recorded(tmp_path / "lock", 1)
    before = path.read_bytes()
    bestof.use_lock(str(path))
    locked = selector(store=str(tmp_path / "own.sqlite"))
    locked(1), locked(2)
    locked.flush()
    assert [one.name for one in tmp_path.iterdir()] == ["lock"]
    assert path.read_bytes() == before
    assert bestof.selection.shared_store() is state.current_lock()


def test_an_alternative_that_raises_gives_way_without_a_trial(tmp_path: Path) -> None:
    bestof.use_lock(str(recorded(tmp_path / "lock", 1)))
    locked = selector(fails="table")
    with pytest.warns(BestofWarning, match="'table' was disqualified"):
        assert locked(1) == "loop"
    assert {locked(1) for _ in range(500)} == {"loop"}
    assert (locked.trials, locked.explain(1).source) == (0, "not in the lock")
    lock = state.current_lock()
    assert lock is not None
    told = "toy 1: 'table' was disqualified: raised OSError: no such table"
    assert lock.missing_lines() == [told]


def test_an_order_stands_above_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(tmp_path / "lock", 1, 2)
    pins = [Pin("toy", "loop", "2")]
    path.write_text(export_records(import_records(path.read_text()), pins))
    bestof.use_lock(str(path))
    pinned = selector()
    assert [(pinned(n), pinned.explain(n).source) for n in (1, 2)] == [
        ("table", "locked"),
        ("loop", "pinned"),
    ]
    fixed = selector(policy="fixed:formula")
    assert (fixed(1), fixed.explain(1).source) == ("formula", "forced")
    monkeypatch.setenv("BESTOF_FORCE", "toy=formula")
    forced = selector()
    assert [(forced(n), forced.explain(n).source) for n in (1, 2)] == [("formula", "forced")] * 2
    assert [one.trials for one in (pinned, fixed, forced)] == [0, 0, 0]


def test_the_policy_of_the_process_does_not_search(tmp_path: Path) -> None:
    bestof.use_lock(str(recorded(tmp_path / "lock", 1)))
    locked = selector()
    for policy in ("race", "window:0-5", "fixed:another"):
        bestof.use_policy(policy)
        try:
            assert [locked(n) for n in (1, policy, policy)] == ["table", "loop", "loop"]
        finally:
            bestof.use_policy(None)
    assert locked.trials == 0


def test_changed_code_is_told_and_not_taken(tmp_path: Path) -> None:
    bestof.use_lock(str(recorded(tmp_path / "lock", 1, 2)))
    with pytest.warns(BestofWarning, match="0 of its 2 records of 'toy' fit.*'table' has another"):
        changed = selector(version="another version")
    assert changed(1) == "loop"
    lock = state.current_lock()
    assert lock is not None
    assert lock.missing_lines() == ["toy 1: 'table' has another version, or does not apply"]


def test_some_records_of_another_machine_are_told(tmp_path: Path) -> None:
    here = import_records(recorded(tmp_path / "lock", 1).read_text())
    there = import_records(recorded(tmp_path / "lock", 1, 2, host="there").read_text())
    (tmp_path / "lock").write_text(export_records(here + there))
    with pytest.warns(BestofWarning, match="1 of its 3 records are of this machine"):
        bestof.use_lock(str(tmp_path / "lock"))
    locked = selector()
    assert [locked(n) for n in (1, 2)] == ["table", "loop"]


@pytest.mark.parametrize(
    ("write", "error", "told"),
    [
        (lambda path: recorded(path, 1, host="there"), InvalidArgument, "0 of its 1 records fit"),
        (lambda path: path.write_text(export_records([])), InvalidArgument, "has no record"),
        (lambda path: recorded(path, 1, decision=None), InvalidArgument, "holds a decision"),
        (
            lambda path: path.write_text('{"format": 1,\n"records": 3}'),
            StoreError,
            "lock: .*line 2",
        ),
        (lambda path: path.write_text("SQLite format 3"), StoreError, "line 1: not JSON"),
        (lambda path: path.write_bytes(b"\xff\xfe"), InvalidArgument, "cannot read"),
        (lambda path: path.mkdir(), InvalidArgument, "Is a directory"),
        (lambda path: None, InvalidArgument, "No such file"),
    ],
)
def test_what_is_no_lock_is_refused_before_anything_is_changed(
    tmp_path: Path,
    write: Callable[[Path], object],
    error: type[Exception],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(tmp_path / "lock")
    with pytest.raises(error, match=told):
        bestof.use_lock(str(tmp_path / "lock"))
    assert state.current_lock() is None
    monkeypatch.setenv("BESTOF_LOCKED", str(tmp_path / "lock"))
    monkeypatch.setattr(state._Process, "asked", False)
    with pytest.raises(error, match=told):
        selector()


def test_a_winner_that_is_given_up_starts_no_search(tmp_path: Path) -> None:
    bestof.use_lock(str(recorded(tmp_path / "lock", 1)))
    one = selector()
    assert [one(1) for _ in range(3)] == ["table"] * 3
    with pytest.warns(BestofWarning, match="'table' was disqualified: raised OSError"):
        assert one.give_up(1, "raised OSError")
    assert [one(1) for _ in range(9)] == ["loop"] * 9
    assert one.trials == 0
    assert not one.give_up(2, "it was never met")
    lock = state.current_lock()
    assert lock is not None
    assert lock.missing_lines() == ["toy 1: 'table' was disqualified: raised OSError"]


def test_a_lock_is_written_without_what_was_disqualified(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LockWriter()
    monkeypatch.setattr(LockWriter, "active", [writer])
    one = selector(store="off", policy="rounds:rounds=3")
    for _ in range(20):
        one(1)
    assert writer.count == 1
    with pytest.warns(BestofWarning, match="'table' was disqualified"):
        assert one.give_up(1, "wrong result: it turned")
    assert (writer.count, writer.left_out) == (0, ["toy 1: not settled"])
    for _ in range(20):
        one(1)
    (record,) = import_records(writer.text())
    assert record.decision == "formula"
    with pytest.warns(BestofWarning, match="'formula' was disqualified"):
        assert one.give_up(1, "wrong result: this one, too")
    one(1)
    assert writer.left_out == ["toy 1: its other alternatives were disqualified"]


def test_a_wrong_result_of_a_checked_winner_leaves_the_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = LockWriter()
    monkeypatch.setattr(LockWriter, "active", [writer])
    one = selector(store="off", policy="rounds:rounds=3", check=_is_right, check_every=5)
    for _ in range(20):
        one(1)
    assert writer.count == 1
    monkeypatch.setattr(Turned, "wrong", {"table"})
    with pytest.warns(BestofWarning, match="'table' was disqualified: wrong result"):
        assert [one(1) for _ in range(20)][-1] == "formula"
    assert [item.decision for item in import_records(writer.text())] == ["formula"]


def test_a_thread_may_meet_problems_while_a_lock_is_told(tmp_path: Path) -> None:
    """As a daemon thread does, which goes on while the summary is made."""
    bestof.use_lock(str(recorded(tmp_path / "lock", 1)))
    lock, writer, met = state.current_lock(), LockWriter(), iter(range(1000))
    assert lock is not None

    class Meeting(str):
        """A name; while it is written, another thread meets a problem."""

        def __format__(self, form: str) -> str:
            problem = str(next(met))
            writer.opened("other", problem)
            lock.miss("other", problem, None)
            return str(self)

    for problem in ("1", "2"):
        writer.opened(Meeting("toy"), problem)
        lock.miss(Meeting("toy"), problem, None)
    assert writer.left_out[:2] == ["toy 1: not settled", "toy 2: not settled"]
    assert lock.missing_lines()[:2] == ["toy 1: no record", "toy 2: no record"]


class Turned:
    """What has become wrong."""

    wrong: ClassVar[set[str]] = set()


def _is_right(_expected: str, got: str) -> bool:
    return got not in Turned.wrong


def test_a_lock_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_file, "_MOST_CHARACTERS", 1 << 20)
    with pytest.raises(InvalidArgument, match="'/dev/zero': it has more than 1 million characters"):
        bestof.use_lock("/dev/zero")
    assert state.current_lock() is None


def test_the_environment_locks_every_selector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recorded(tmp_path / "lock", 1)
    monkeypatch.setenv("BESTOF_LOCKED", str(path))
    monkeypatch.setattr(state._Process, "asked", False)
    assert (selector(store="off")(1), selector()(1)) == ("table", "table")
    bestof.use_lock(str(path))  # the same lock again
    with pytest.raises(InvalidArgument, match=r"cannot be locked to .*other too"):
        bestof.use_lock(str(tmp_path / "other"))


def test_a_lock_after_trials_is_refused(tmp_path: Path) -> None:
    path = recorded(tmp_path / "lock", 1)
    early = selector(store="off")
    early(1)
    with pytest.raises(InvalidArgument, match=r"comes too late: .* trials were made"):
        bestof.use_lock(str(path))
    assert state.current_lock() is None


def test_a_lock_after_a_decision_of_the_store_is_refused(tmp_path: Path) -> None:
    path, store = recorded(tmp_path / "lock", 1), MemoryStore()
    store.unite(import_records(path.read_text()))
    early = selector(store=store)
    assert (early(1), early.trials) == ("table", 0)
    with pytest.raises(InvalidArgument, match=r"comes too late: 0 trials .* 1 problems decided"):
        bestof.use_lock(str(path))
    assert state.current_lock() is None


def test_a_check_compares_nothing_and_settled_calls_stay_on_the_hot_path(tmp_path: Path) -> None:
    bestof.use_lock(str(recorded(tmp_path / "lock", 1)))
    locked = selector(check=lambda _expected, _got: False)
    assert {locked(1) for _ in range(50)} == {"table"}
    assert locked._settled[1].calls >= 49


def test_a_group_takes_one_alternative_for_all_stages(tmp_path: Path) -> None:
    def group() -> BestOf:
        names = ("whole", "parts")
        return BestOf(
            "pair",
            [
                Alternative(name, [partial(_stage, name), partial(_stage, name)], ("1",))
                for name in names
            ],
            lambda n: n,
        )

    made = group()
    evidence = tuple(
        Evidence(name, version, (1e-6,))
        for name, version in zip(("whole", "parts"), made.versions, strict=True)
    )
    text = export_records([Record("pair", "1", host(), "parts", evidence, 0.0)])
    (tmp_path / "lock").write_text(text)
    bestof.use_lock(str(tmp_path / "lock"))
    locked = group()
    assert [locked(stage, 1) for stage in (0, 1, 0, 0, 1, 1)] == ["parts"] * 6
    assert [locked(stage, 2) for stage in (0, 1)] == ["whole"] * 2
    assert locked.trials == 0


def _stage(name: str, _problem: object) -> str:
    return name
