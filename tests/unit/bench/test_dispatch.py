"""`bestof bench dispatch`: what it reports of its measurements, and that its cases run."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Sequence

import pytest

from bestof.bench import dispatch
from bestof.bench.dispatch import CASES, THREADS, Case, DispatchTime, measure
from bestof.errors import InvalidArgument
from bestof.selection.policies import Rounds
from bestof.selection.state.journal import TrialEntry
from bestof.selection.trials.trial import current_trial, detours


def test_every_case_is_measured_and_leaves_nothing_behind() -> None:
    threads = set(threading.enumerate())
    rows = measure(repeats=2, calls=8 * THREADS)
    assert [row.name for row in rows] == [case.name for case in CASES]
    assert all(
        math.isfinite(time) for row in rows for time in (row.seconds, row.spread, row.threaded)
    )
    assert rows[0].seconds > 0.0
    assert detours == []
    assert set(threading.enumerate()) <= threads  # others may end meanwhile


def test_rows_are_medians_of_repeats_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, int]] = []
    times = {"a": iter([1.0, 50.0, 2.0, 60.0, 9.0, 40.0]), "b": iter([5.0, 7.0] * 3)}

    def case(name: str) -> Case:
        def seconds(calls: int, threads: int) -> float:
            asked.append((name, calls, threads))
            return next(times[name])

        return Case(name, seconds)

    monkeypatch.setattr(dispatch, "CASES", (case("a"), case("b")))
    rows = measure(repeats=3, calls=80)
    # Quartiles of 1, 2, 9 are 1.5 and 5.5.
    assert rows == [DispatchTime("a", 2.0, 2.0, 50.0), DispatchTime("b", 5.0, 0.0, 7.0)]
    assert asked == [("a", 80, 1), ("a", 10, THREADS), ("b", 80, 1), ("b", 10, THREADS)] * 3


@pytest.mark.parametrize(
    ("repeats", "calls", "word"), [(1, 800, "repeats"), (2, THREADS - 1, "calls")]
)
def test_too_few_to_judge_by_is_refused(repeats: int, calls: int, word: str) -> None:
    with pytest.raises(InvalidArgument, match=word):
        measure(repeats, calls)


def test_trials_run_where_they_say() -> None:
    met: list[tuple[bool, int]] = []

    def frames() -> int:
        frame, count = inspect.currentframe(), 0
        while frame is not None:
            frame, count = frame.f_back, count + 1
        return count

    def note() -> None:
        met.append((current_trial.get() is not None, frames()))

    for around in (dispatch._here, dispatch._inside_a_trial, dispatch._deep):
        around(note)()
    (here, shallow), (inside, _), (deep, depth) = met
    assert (here, inside, deep) == (False, True, False)
    assert depth - shallow == 200


def test_the_policy_is_replayed_from_its_recorded_times() -> None:
    selector = dispatch._on_trial(Rounds(rounds=3))
    for _ in range(4):
        selector(1)
    told: list[tuple[int, float]] = []

    class Search:
        winner = None

        def ask(self) -> int:
            return 0

        def tell(self, position: int, seconds: float) -> None:
            told.append((position, seconds))

        def drop(self, position: int) -> None:
            raise AssertionError("nothing failed")

    class Spying:
        def start(self, alternatives: Sequence[str]) -> Search:
            assert list(alternatives) == ["first", "second"]
            return Search()

    work = dispatch._policy_alone(Spying(), selector)
    assert len(told) == 1  # the trial in which the problem was met
    work()
    entries = [entry for entry in selector.journal.entries() if isinstance(entry, TrialEntry)]
    assert [position for position, _ in told] == [0, 1, 0, 1]
    assert [seconds for _, seconds in told] == [entry.seconds for entry in entries]
