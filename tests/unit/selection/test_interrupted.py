"""Interrupts, and searches that are ended from outside, at every point."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from types import FrameType
from typing import Any

import pytest

from bestof import Alternative, BestOf
from bestof.selection.call.new_problem import NewProblems
from bestof.selection.policies import Race, Rounds, Window
from bestof.selection.state.knowledge import Knowledge
from bestof.selection.state.tuning import Tuning
from bestof.selection.store.memory import MemoryStore
from bestof.selection.trials.trial import current_trial


def test_the_next_run_tries_what_a_window_left_untried() -> None:
    """The step falls into a trial: the search ends with alternatives that nobody ever called."""
    now, calls, seconds = [0.0], [0], {"a": 10.0, "b": 1.0, "c": 2.0}
    window, store = Window(0, 1, Rounds(3)), MemoryStore()

    def alternative(name: str) -> Alternative:
        def called(x: int) -> str:
            calls[0] += 1
            if calls[0] == 2:
                window.step()
            now[0] += seconds[name]
            return name

        return Alternative(name, called, depends=["the same for both runs, whatever `calls` says"])

    def run(policy: object) -> BestOf:
        return BestOf(
            "windowed",
            [alternative(name) for name in seconds],
            lambda x: 0,
            policy=policy,
            store=store,
            clock=lambda: now[0],
            drift=False,
        )

    first = run(window)
    first(1), first(1)
    assert first.explain(0).decision == "a"
    second = run(Rounds(3))
    for _ in range(20):
        second(1)
    assert second.explain(0).decision == "b"


def test_a_trial_that_outlives_its_forgotten_problem_leaves_the_decision_of_its_successor() -> None:
    now, seconds = [0.0], {"a": 1.0, "b": 5.0}
    held, gate, inside = threading.Event(), threading.Event(), threading.Event()
    held.set()

    def alternative(name: str) -> tuple[str, object]:
        def called(n: int) -> str:
            if (
                n == 1
                and name == "b"
                and threading.current_thread().name == "slow"
                and held.is_set()
            ):
                held.clear()
                inside.set()
                gate.wait(250)
            now[0] += seconds[name]
            return name

        return name, called

    it = BestOf(
        "outlived",
        [alternative("a"), alternative("b")],
        lambda n: n,
        policy=Rounds(1),
        store="off",
        max_problems=2,
        clock=lambda: now[0],
        drift=False,
    )
    it(1)
    slow = threading.Thread(target=it, args=(1,), name="slow")
    slow.start()
    assert inside.wait(250)
    for other in (2, 3, 4, 5):
        it(other)
    seconds.update(a=9.0, b=2.0)
    for _ in range(3):
        it(1)
    assert it.explain(1).decision == "b"
    seconds.update(a=1.0, b=9.0)
    gate.set()
    slow.join()
    assert it(1) == "b"
    assert it.explain(1).decision == "b"


def call(selector: BestOf, times: int) -> None:
    for _ in range(times):
        selector(1)


class Stop(BaseException):
    """What a signal handler raises."""


@pytest.mark.parametrize("policy", [Rounds(2), Race(), Window(0, 5, Rounds(2))])
def test_a_decision_that_an_interrupt_delayed_is_measured_and_kept(
    monkeypatch: pytest.MonkeyPatch, policy: object
) -> None:
    """The interrupt falls between the last trial and the decision."""
    now, seconds, store = [0.0], {"a": 2.0, "b": 1.0}, MemoryStore()

    def alternative(name: str) -> Alternative:
        def called(x: int) -> str:
            now[0] += seconds[name]
            return name

        return Alternative(name, called, depends=["a fake clock"])

    selector = BestOf(
        "delayed",
        [alternative(name) for name in seconds],
        lambda x: x,
        policy=policy,
        store=store,
        clock=lambda: now[0],
        drift=False,
    )

    def interrupted(knowledge: Knowledge, tuning: Tuning) -> None:
        if tuning.search.winner is not None:
            raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(Knowledge, "conclude", interrupted)
        with pytest.raises(Stop):
            call(selector, times=100)
    assert selector.explain(1).decision is None
    assert selector(1) == "b"
    assert (selector.explain(1).decision, selector.explain(1).source) == ("b", "measured")
    (kept,) = store.records()
    assert kept.decision == "b"


def test_an_interrupt_of_a_problem_that_waits_leaves_no_trial() -> None:
    selector = BestOf("waits", [("a", abs), ("b", abs)], abs, store="off", max_searches=1)
    selector(1)  # its search goes on
    names = ("_answer_unopened", "call_inside", "leave_trial")

    def is_interrupted(place: int) -> bool:
        """Call with a new problem; interrupt the call at a line, if it has so many."""
        lines = iter(range(place))

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if frame.f_code.co_name not in names:
                return None
            if event == "line" and next(lines, None) is None:
                sys.settrace(None)
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            return bool(selector(2 + place) != 2 + place)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)

    place = 0
    while is_interrupted(place):
        place += 1
        assert current_trial.get() is None
    assert place > 3


@pytest.mark.parametrize(
    "owner", [(NewProblems, "_recall"), (Tuning, "replay"), (Knowledge, "publish")]
)
@pytest.mark.parametrize("check", [None, 1e-5])
def test_a_search_is_seen_by_calls_only_once_it_is_complete(
    monkeypatch: pytest.MonkeyPatch, owner: tuple[type, str], check: float | None
) -> None:
    """An interrupt as a problem is first met: later calls are compared, and know their stage."""
    store = MemoryStore()

    def stages(name: str, factor: float) -> Alternative:
        group = [lambda x: factor * x, lambda x, y: factor * (x + y)]
        return Alternative(name, group, depends=[name])

    def made() -> BestOf:
        pairs = [stages("first", 2.0), stages("second", 2.0 if check is None else 3.0)]
        return BestOf(
            "met", pairs, lambda *_: 0, check=check, store=store, policy="rounds:rounds=3"
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = made()
        first(0, 1.0), first(1, 1.0, 2.0), first.flush()
        second = made()
        with monkeypatch.context() as patched:
            before = getattr(*owner)

            def interrupted(*args: object) -> object:
                before(*args)
                raise Stop

            patched.setattr(*owner, interrupted)
            for _ in range(3):
                with contextlib.suppress(Stop):
                    second(0, 1.0)
        for _ in range(50):
            assert second(0, 1.0) == 2.0
            assert second(1, 1.0, 2.0) == 6.0
