"""Trials of a selector: what is booked, and what happens if an alternative fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bestof import BestOf
from bestof.errors import BestofWarning
from bestof.selection.policies import Rounds
from bestof.selection.state.journal import DecisionEntry, DisqualificationEntry, TrialEntry
from bestof.selection.trials.trial import current_trial, detours


class Clock:
    """Advances by what the alternative that ran says it took."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def takes(self, seconds: float, answer: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            self.now += seconds
            if isinstance(answer, Exception):
                raise answer
            return answer

        return run


def _selector(clock: Clock, alternatives: list[tuple[str, Any]], **options: Any) -> BestOf:
    options = {"policy": Rounds(rounds=2), "store": "off", "clock": clock, **options}
    return BestOf("attempts", alternatives, lambda *args: args, **options)


def test_every_trial_is_in_the_journal_and_in_the_sums() -> None:
    clock = Clock()
    selector = _selector(clock, [("slow", clock.takes(4.0, "s")), ("fast", clock.takes(1.0, "f"))])
    assert [selector(1) for _ in range(6)] == ["s", "f", "s", "f", "f", "f"]
    entries = selector.journal.entries()
    assert entries == (
        TrialEntry((1,), "slow", 0, 4.0, True),
        TrialEntry((1,), "fast", 0, 1.0, True),
        TrialEntry((1,), "slow", 0, 4.0, True),
        TrialEntry((1,), "fast", 0, 1.0, True),
        DecisionEntry((1,), "fast", "measured"),
    )
    assert [type(entry) for entry in entries] == [TrialEntry] * 4 + [DecisionEntry]
    assert (selector.trials, selector.trial_seconds, selector.loss_seconds) == (4, 10.0, 6.0)
    assert selector.settled_calls == 2
    assert selector.best_method_has_been_found(1)


def test_one_that_raises_is_taken_out_and_another_answers() -> None:
    clock = Clock()
    selector = _selector(
        clock,
        [
            ("broken", clock.takes(1.0, ValueError("no"))),
            ("b", clock.takes(2.0, "b")),
            ("c", clock.takes(3.0, "c")),
        ],
    )
    with pytest.warns(BestofWarning, match="'broken' was disqualified: raised ValueError: no"):
        assert selector(1) == "b"
    assert selector.journal.entries() == (
        DisqualificationEntry((1,), "broken", "raised ValueError: no"),
        TrialEntry((1,), "b", 0, 2.0, True),
    )
    assert [selector(1) for _ in range(4)] == ["c", "b", "c", "b"]
    assert detours == []
    assert current_trial.get() is None


def test_one_that_is_wrong_is_taken_out_and_the_reference_answers() -> None:
    clock = Clock()
    selector = _selector(
        clock, [("right", clock.takes(2.0, 1.0)), ("wrong", clock.takes(1.0, 5.0))], check=1e-3
    )
    assert selector(1) == 1.0
    with pytest.warns(BestofWarning, match="'wrong' was disqualified: wrong result: .* off by 4"):
        assert selector(1) == 1.0
    assert [selector(1) for _ in range(3)] == [1.0] * 3
    names = [
        entry.alternative for entry in selector.journal.entries() if isinstance(entry, TrialEntry)
    ]
    assert "wrong" not in names
    assert selector.explain(1).decision == "right"


def test_a_check_that_raises_counts_as_wrong_and_a_passed_one_is_not_repeated() -> None:
    clock = Clock()
    compared: list[tuple[str, str]] = []

    def check(expected: str, got: str) -> bool:
        compared.append((expected, got))
        if got == "c":
            raise KeyError(got)
        return True

    selector = _selector(clock, [(name, clock.takes(1.0, name)) for name in "abc"], check=check)
    selector(1), selector(1)
    with pytest.warns(
        BestofWarning, match="'c' was disqualified: wrong result: check raised KeyError: 'c'"
    ):
        assert selector(1) == "a"
    for _ in range(4):
        selector(1)
    assert compared == [("a", "b"), ("a", "c")]


def test_a_pass_of_a_group_is_one_sample() -> None:
    clock = Clock()
    selector = _selector(
        clock,
        [
            (name, [clock.takes(first, name), clock.takes(1.0, name)])
            for name, first in (("x", 2.0), ("y", 1.0))
        ],
    )
    answers = [selector(stage, 1) for _ in range(5) for stage in (0, 1)]
    assert answers == list("xxyyxxyyyy")
    stages = [
        (entry.stage, entry.seconds)
        for entry in selector.journal.entries()
        if isinstance(entry, TrialEntry)
    ]
    assert stages == [(0, 2.0), (1, 1.0), (0, 1.0), (1, 1.0)] * 2
    assert selector.settled_calls == 2


def test_a_trial_around_an_unsettled_choice_does_not_count() -> None:
    clock = Clock()
    inner = _selector(clock, [("i", clock.takes(1.0, "i")), ("j", clock.takes(2.0, "j"))])
    outer = _selector(clock, [("o", inner), ("p", clock.takes(9.0, "p"))], policy=Rounds(rounds=1))
    while not outer.best_method_has_been_found(1):
        outer(1)
    counted = [entry.counted for entry in outer.journal.entries() if isinstance(entry, TrialEntry)]
    assert counted == [False] * 4 + [True] * 2
    assert outer.explain(1).decision == "o"
    assert [child.selector for child in outer._knowledge.decisions[(1,)].evidence[0].children] == [
        "attempts"
    ]


def test_an_interrupt_passes_through_and_leaves_no_trial_open() -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    selector = _selector(Clock(), [("a", interrupted), ("b", interrupted)])
    with pytest.raises(KeyboardInterrupt):
        selector(1)
    assert detours == []
    assert current_trial.get() is None
    assert selector.journal.entries() == ()
