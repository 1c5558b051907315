"""The race: exact courses, robustness against the usual kinds of noise, ties, bounds, and its
arguments."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from bestof.errors import InvalidArgument
from bestof.selection.policies.race import Race, RaceSearch


def play(search: RaceSearch, seconds: Callable[[int, int], float]) -> list[int]:
    """Call what is asked for until it settles; `seconds(position, call)` is the time at that call
    of the program."""
    calls: list[int] = []
    while (position := search.ask()) is not None:
        search.tell(position, seconds(position, len(calls)))
        calls.append(position)
        assert len(calls) < 10_000
    return calls


def test_drops_the_hopeless_after_two_trials_and_the_near_later() -> None:
    search = Race().start(["a", "b", "c", "d"])
    calls = play(search, lambda position, call: (10.0, 1.0, 1.3, 1.1)[position])
    # Trials needed at 0.999: 2 from a factor of 2.64 on, 5 from 1.23, 10 (the sign test) from 1.02;
    # the tie included.
    assert calls[:8] == [0, 1, 2, 3] * 2
    assert Counter(calls) == {0: 2, 1: 10, 2: 5, 3: 10}
    assert search.winner == 1


def test_exact_ties_go_to_the_first_once_that_is_certain() -> None:
    search = Race(confidence=0.99).start(["a", "b", "c"])
    assert play(search, lambda position, call: (1.01, 1.0, 1.005)[position]) == [0, 1, 2] * 7
    assert search.winner == 0


@pytest.mark.parametrize(("behind", "winner"), [(1.005, 0), (1.015, 1)])
def test_an_uncertain_race_ends_with_the_first_inside_half_the_band(
    behind: float, winner: int
) -> None:
    noise = [
        0.9,
        1.0,
        1.0,
        1.1,
    ]  # of the first alternative, and backwards of the second: ratios 0.82, 1, 1, 1.22
    search = Race(max_trials=12).start(["a", "b"])
    calls = play(
        search,
        lambda position, call: (behind * noise[call // 2 % 4], noise[-1 - call // 2 % 4])[position],
    )
    assert Counter(calls) == {0: 12, 1: 12}
    assert search.winner == winner


def test_a_slow_first_call_does_not_lose_the_race() -> None:
    first = {0: 1.0, 1: 50.0}
    search = Race().start(["a", "b"])
    told: Counter[int] = Counter()
    while (position := search.ask()) is not None:
        search.tell(
            position, (1.5, 1.0)[position] * (first[position] if not told[position] else 1.0)
        )
        told[position] += 1
    assert search.winner == 1


def race_of(*times: list[float], **options: float) -> tuple[int | None, list[int]]:
    """The winner, and how often each was called; the last time of each list is that of all later
    calls."""
    names = [str(position) for position in range(len(times))]
    search = Race(**options).start(names)  # type: ignore[arg-type]
    left = [list(each) for each in times]
    calls = play(
        search,
        lambda position, call: (
            left[position].pop(0) if len(left[position]) > 1 else left[position][0]
        ),
    )
    return search.winner, [calls.count(position) for position in range(len(times))]


def test_an_alternative_far_behind_leaves_at_its_second_call() -> None:
    winner, calls = race_of([1.0], [200.0, 7.0, 0.1], [3.0, 1.2])
    assert (winner, calls[1]) == (0, 2)


@pytest.mark.parametrize(
    "times",
    [
        pytest.param([13.0, 18.0, 0.5], id="a slow first call, then one that was late by more"),
        pytest.param([5.8, 5.0, 0.5], id="two late calls that differ by more than a tenth"),
        pytest.param(
            [9.0, 5.0, 0.5], id="a slow first call, then one that is late by less than six times"
        ),
        pytest.param([5.0, 2.6, 2.7, 0.5], id="two late calls after a slow first one"),
    ],
)
def test_a_slow_first_call_and_late_ones_do_not_lose_the_race(times: list[float]) -> None:
    winner, _ = race_of([1.0], times)
    assert winner == 1


def test_an_alternative_that_was_once_as_fast_as_the_leader_stays() -> None:
    winner, _ = race_of([4.6, 1.0, 29.0, 0.97, 22.0, 1.0], [7.4, 1.58, 1.59, 15.6, 1.62, 1.6])
    assert winner == 0


def test_a_hopeless_first_call_is_enough_only_where_that_was_said() -> None:
    compiled = ([1.0], [1000.0, 0.5], [31.0], [29.0])
    assert race_of(*compiled)[0] == 1
    winner, calls = race_of(*compiled, hopeless=30.0)
    assert winner == 0
    assert calls[1:] == [1, 1, 2]


def test_a_costly_first_call_is_enough_where_that_was_said() -> None:
    library = ([0.1], [10.0, 0.01], [0.59, 0.01], [0.39])
    assert race_of(*library)[0] in (1, 2)
    winner, calls = race_of(*library, costly=0.5)
    assert winner == 2  # its first call was late by less
    assert calls[1] == 1
    winner, calls = race_of(*library, costly=0.4)
    assert calls[1:3] == [1, 1]


def test_a_costly_first_call_needs_a_factor_as_well() -> None:
    _, calls = race_of([10.0], [39.0], [40.0], costly=0.5)
    assert calls[1:] == [2, 1]


def test_the_alternative_that_is_called_first_may_begin_slowly() -> None:
    winner, _ = race_of([10.0, 0.5], [1.0], costly=0.5)
    assert winner == 0


@pytest.mark.parametrize("late", range(6))
def test_one_late_call_never_decides(late: int) -> None:
    search = Race().start(["a", "b", "c"])
    play(
        search, lambda position, call: (1.2, 1.0, 1.4)[position] * (100.0 if call == late else 1.0)
    )
    assert search.winner == 1


def heavy(draw: random.Random, call: int) -> float:
    return 1 + 0.02 * draw.random() + (draw.paretovariate(1.3) if draw.random() < 1 / 12 else 0.0)


def ramp(draw: random.Random, call: int) -> float:
    return (1 + 0.02 * draw.random()) * (1 + 0.6 * math.exp(-call / 40))


def bursts(draw: random.Random, call: int) -> float:
    return (1 + 0.02 * draw.random()) * (1.9 if call % 29 < 8 else 1.0)


def bimodal(draw: random.Random, call: int) -> float:
    return (1 + 0.02 * draw.random()) * (1.35 if draw.random() < 0.3 else 1.0)


@pytest.mark.parametrize("noise", [heavy, ramp, bursts, bimodal])
def test_a_hundred_noisy_runs_decide_alike(noise: Callable[[random.Random, int], float]) -> None:
    winners: Counter[int | None] = Counter()
    for seed in range(100):
        draw = random.Random(seed)
        search = Race().start(["a", "b", "c", "d"])
        play(
            search,
            lambda position, call, draw=draw: (1.5, 1.12, 1.0, 4.0)[position] * noise(draw, call),
        )
        winners[search.winner] += 1
    assert winners == {2: 100}


def test_a_new_alternative_measures_itself() -> None:
    search = Race().start(["old", "older"])
    seconds = (1.0, 1.5, 1.2)
    told = play(search, lambda position, call: seconds[position])
    wider = Race().start(["old", "older", "new"])
    for position in told:
        wider.tell(position, seconds[position])
    # The old ones have 4 samples each, after which the slower lost; the new one needs 6, side by
    # side with the leader.
    assert play(wider, lambda position, call: seconds[position]) == [2, 2, 2, 2, 0, 2, 0, 2]
    assert wider.winner == 0


def test_dropping_the_leader_brings_back_its_losers() -> None:
    search = Race().start(["a", "b", "c"])
    play(search, lambda position, call: (1.0, 5.0, 6.0)[position])
    search.drop(0)
    assert (search.winner, search.ask()) == (None, 1)
    play(search, lambda position, call: (1.0, 5.0, 6.0)[position])
    assert search.winner == 1


def test_samples_are_bounded() -> None:
    search = Race(max_trials=5).start(["a", "b"])
    for _ in range(100):
        search.tell(0, 1.0)
    assert len(search._samples[0]) == 5


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"tie": -0.1}, "tie"),
        ({"tie": math.nan}, "tie"),
        ({"confidence": 0.4}, "confidence"),
        ({"confidence": 1.0}, "confidence"),
        ({"max_trials": 0}, "max_trials"),
        ({"hopeless": 0.9}, "hopeless"),
        ({"costly": -0.1}, "costly"),
        ({"costly": math.nan}, "costly"),
        ({"handicaps": 5}, "handicaps"),
        ({"handicaps": "ab"}, "handicaps"),
        ({"handicaps": {"ab": 1.0}}, "handicaps"),
        ({"handicaps": [("a", 1.0)]}, "handicaps"),  # could not be hashed
        ({"handicaps": (("a", 1.0, 2.0),)}, "handicaps"),
        ({"handicaps": ((3, 1.0),)}, "handicaps"),
        ({"handicaps": (("a", 1.0), ("a", 2.0))}, "handicaps"),
        ({"handicaps": (("a", math.inf),)}, "handicaps: a"),
        ({"handicaps": (("a", math.nan),)}, "handicaps: a"),
    ],
)
def test_refuses_invalid_arguments(arguments: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"Race: {name}: expected .*[;,] got"):
        Race(**arguments)  # type: ignore[arg-type]  # the wrong types are the point


def test_an_alternative_must_win_by_more_than_its_handicap() -> None:
    def winner(times: tuple[float, ...], names: list[str]) -> int | None:
        search = Race(handicaps=(("a", 0.5), ("c", 0.5))).start(names)
        while (position := search.ask()) is not None:
            search.tell(position, times[position])
        return search.winner

    assert winner((0.8, 1.0, 0.7), ["a", "b", "c"]) == 1
    assert winner((0.8, 1.0, 0.4), ["a", "b", "c"]) == 2
    assert winner((0.8, 1.0, 0.9), ["d", "b", "e"]) == 0  # none has one
    with pytest.raises(InvalidArgument, match="Race: handicaps: a: expected"):
        Race(handicaps=(("a", -1.0),))
