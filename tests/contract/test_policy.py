"""The promises of every policy."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bestof.errors import InvalidArgument
from bestof.selection import policies
from bestof.selection.policies import POLICIES, Neighbour, Race, Rounds, Window, parse_policy
from bestof.selection.policies.policy import SearchingPolicy

NAMES = ["a", "b", "c", "d"]
# The arguments of the policies that cannot do without.
ARGUMENTS = {"window": "0-5", "fixed": "a"}
CASES: dict[str, Callable[[], Any]] = {
    **{name: partial(parse_policy, f"{name}:{ARGUMENTS.get(name, '')}") for name in POLICIES},
    "rounds-1": lambda: Rounds(rounds=1),
    "race-hopeless": lambda: Race(hopeless=2.5),
    "race-costly": lambda: Race(costly=0.5),
    "race-once": lambda: Race(max_trials=1),
    "race-handicaps": lambda: Race(handicaps=(("d", 0.1),)),
    "window-rounds": lambda: Window(0, 5, Rounds(rounds=3)),
    "window-before": lambda: Window(3, 5),
    "neighbour": lambda: Neighbour("c"),
    "neighbour-without": lambda: Neighbour("c", without=frozenset("d")),
    "neighbour-patient": lambda: Neighbour("c", patience=3),
}
# Those that try every alternative from the first call on.
SEARCHING = sorted(
    set(CASES) - {"fixed", "window-before", "neighbour-patient", "neighbour-without"}
)
every = pytest.mark.parametrize("case", sorted(CASES))
searching = pytest.mark.parametrize("case", SEARCHING)
LONGEST = 2000  # calls that no search needs


def noisy(seed: int, truth: tuple[float, ...] = (3.0, 1.0, 2.0, 1.5)) -> Callable[[int], float]:
    """Times with two percent of noise, one call in twenty five times as long."""
    draw = random.Random(seed)
    return lambda position: (
        truth[position] * (1 + 0.02 * draw.random()) * (5 if draw.random() < 0.05 else 1)
    )


def play(
    policy: SearchingPolicy, seconds: Callable[[int], float], names: list[str] = NAMES
) -> list[tuple[int, float]]:
    """The calls of one search until it settles, each with its time."""
    search = policy.start(names)
    told = []
    while (position := search.ask()) is not None:
        told.append((position, seconds(position)))
        search.tell(*told[-1])
        assert len(told) <= LONGEST
    assert search.winner is not None
    return told


@every
def test_asking_again_gives_the_same_answer(case: str) -> None:
    search, seconds = CASES[case]().start(NAMES), noisy(0)
    for _ in range(30):
        position = search.ask()
        assert [search.ask(), search.ask(), search.best, search.ask()] == [
            position,
            position,
            search.best,
            position,
        ]
        if position is None:
            return
        search.tell(position, seconds(position))


@searching
def test_settles_on_the_best_when_the_gap_is_wide(case: str) -> None:
    policy = CASES[case]()
    search = policy.start(NAMES)
    for position, seconds in play(CASES[case](), lambda position: (3.0, 1.0, 2.0, 1.5)[position]):
        assert search.winner is None
        search.tell(position, seconds)
    assert search.winner == search.best == 1
    assert search.ask() is None


@searching
@pytest.mark.parametrize("seed", range(5))
def test_the_same_times_lead_to_the_same_decision(case: str, seed: int) -> None:
    told = play(CASES[case](), noisy(seed))
    first, by_alternative = CASES[case]().start(NAMES), CASES[case]().start(NAMES)
    for position, seconds in told:
        first.tell(position, seconds)
    for position, seconds in sorted(
        told, key=lambda call: call[0]
    ):  # as a store holds it, each in the order taken
        by_alternative.tell(position, seconds)
    assert first.winner is not None
    assert by_alternative.winner == first.winner
    assert by_alternative.ask() is None


@searching
@pytest.mark.parametrize("seed", range(3))
def test_resumes_from_part_of_the_evidence(case: str, seed: int) -> None:
    told = play(CASES[case](), noisy(seed))
    for stop in range(len(told)):
        search = CASES[case]().start(NAMES)
        for position, seconds in told[:stop]:
            search.tell(position, seconds)
        assert search.ask() == told[stop][0]
        assert search.winner is None


@searching
def test_a_dropped_alternative_is_neither_asked_for_nor_decided(case: str) -> None:
    search = CASES[case]().start(NAMES)
    search.drop(1)
    search.tell(1, 0.001)
    for _ in range(LONGEST):
        position = search.ask()
        if position is None:
            break
        assert position != 1
        search.tell(position, (3.0, 1.0, 2.0, 1.5)[position])
    assert search.winner == 3


@every
def test_without_any_alternative_left_there_is_no_winner(case: str) -> None:
    search = CASES[case]().start(NAMES)
    for position in (2, 0, 1, 3, 3):
        search.drop(position)
    assert (search.ask(), search.winner, search.best) == (None, None, None)


@searching
def test_dropping_the_winner_leaves_another_or_searches_on(case: str) -> None:
    search = CASES[case]().start(NAMES)
    seconds = (3.0, 1.0, 2.0, 1.5)
    for _ in range(LONGEST):
        if (position := search.ask()) is None:
            break
        search.tell(position, seconds[position])
    search.drop(1)
    for _ in range(LONGEST):
        if (position := search.ask()) is None:
            break
        search.tell(position, seconds[position])
    assert search.winner == 3


@every
def test_a_single_alternative_is_legal(case: str) -> None:
    policy = CASES[case]()
    search = policy.start(["a"])
    for _ in range(20):
        if (position := search.ask()) is None:
            break
        assert position == 0
        search.tell(0, 1.0)
        if isinstance(policy, Window):
            policy.step()
    assert search.winner == 0


@searching
def test_times_of_zero_are_legal(case: str) -> None:
    play(CASES[case](), lambda position: 0.0)


@every
def test_no_alternative_is_refused(case: str) -> None:
    with pytest.raises(InvalidArgument):
        CASES[case]().start([])


@every
def test_is_a_value(case: str) -> None:
    policy = CASES[case]()
    assert policy == CASES[case]()
    names = vars(policies) | vars(sys.modules[type(policy).__module__])
    assert eval(repr(policy), names) == policy
    assert hash(policy) == hash(CASES[case]())


@pytest.mark.parametrize("name", POLICIES)
def test_every_parsed_policy_starts(name: str) -> None:
    assert CASES[name]().start(NAMES).winner in (None, 0)


@searching
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(times=st.lists(st.floats(0, 1e6), min_size=8, max_size=8), seed=st.integers(0, 99))
def test_settles_whatever_the_times(case: str, times: list[float], seed: int) -> None:
    policy = CASES[case]()
    draw = random.Random(seed)
    search = policy.start(NAMES)
    for call in range(LONGEST):
        if (position := search.ask()) is None:
            break
        search.tell(position, times[draw.randrange(len(times))])
        if (
            "thrifty" in case and call == 400
        ):  # the bound waits for time to pass; let much of it pass
            search.tell(position, 1e9)
    else:
        assert "thrifty" in case
        return
    assert search.winner is not None


class Machine(RuleBasedStateMachine):
    """Asks, tells and drops in any order, beside an account of what may be answered."""

    case = ""

    @initialize()
    def begin(self) -> None:
        self.search = CASES[self.case]().start(NAMES)
        self.live = set(range(len(NAMES)))

    @rule(seconds=st.floats(0, 100))
    def call(self, seconds: float) -> None:
        position = self.search.ask()
        if position is not None:
            self.search.tell(position, seconds)

    @rule(position=st.sampled_from(range(len(NAMES))), seconds=st.floats(0, 100))
    def tell(self, position: int, seconds: float) -> None:
        self.search.tell(position, seconds)

    @rule(position=st.sampled_from(range(len(NAMES))))
    def drop(self, position: int) -> None:
        self.search.drop(position)
        self.live.discard(position)

    @precondition(lambda self: hasattr(self, "search"))
    @invariant()
    def answers_fit(self) -> None:
        asked, winner, best = self.search.ask(), self.search.winner, self.search.best
        assert asked is None or winner is None
        assert {asked, winner, best} <= self.live | {None}
        if self.live and self.case != "fixed":
            assert (asked is None) == (winner is not None)
        if winner is not None:
            assert best == winner
        assert (self.search.ask(), self.search.winner) == (asked, winner)


@every
def test_any_order_of_calls(case: str) -> None:
    machine = type("Machine", (Machine,), {"case": case})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=25, stateful_step_count=40, deadline=None)
    )
