"""Calls of several kinds under one problem: the mean over all of them decides."""

from __future__ import annotations

from itertools import cycle

import pytest

from bestof.errors import InvalidArgument
from bestof.selection.policies import Mixture
from bestof.selection.policies.drift import Drift, two_populations

COST = {
    "a": {"big": 8.0, "small": 2.0},
    "b": {"big": 4.0, "small": 1.0},
    "c": {"big": 6.0, "small": 3.0},
}


def decide(kinds: list[str], names: str, decision: str) -> tuple[str, int]:
    search, calls = Mixture(decision).start(list(names)), 0
    for kind in cycle(kinds):
        position = search.ask()
        if position is None:
            break
        search.tell(position, COST[names[position]][kind] * (1.0 + 0.01 * (calls % 3)))
        calls += 1
    assert search.winner is not None
    return names[search.winner], calls


@pytest.mark.parametrize("kinds", [["big", "small"], ["small", "big"], ["big", "big", "small"]])
@pytest.mark.parametrize("names", ["ab", "ba", "abc", "cba"])
@pytest.mark.parametrize("decision", ["a", "b"])
def test_the_lowest_mean_wins_whatever_turns_the_calls_take(
    kinds: list[str], names: str, decision: str
) -> None:
    winner, calls = decide(kinds, names, decision)
    assert winner == "b"
    assert calls <= 24 * len(names)


def test_a_near_tie_goes_to_the_decision_so_far() -> None:
    for decision in "ab":
        search = Mixture(decision).start(["a", "b"])
        while (position := search.ask()) is not None:
            search.tell(position, (1.00, 1.03)[position])
        assert "ab"[search.winner or 0] == decision


def test_an_alternative_that_is_always_slower_is_dropped_early() -> None:
    search, calls = Mixture("a").start(["a", "b"]), [0, 0]
    while (position := search.ask()) is not None:
        calls[position] += 1
        search.tell(position, (1.0, 9.0)[position])
    assert calls == [6, 6]
    assert search.winner == 0


def test_the_last_one_left_wins_without_a_call() -> None:
    search = Mixture("a").start(["a", "b"])
    search.drop(0)
    assert (search.ask(), search.winner) == (None, 1)
    search.drop(1)
    assert (search.ask(), search.winner, search.best) == (None, None, None)


@pytest.mark.parametrize("arguments", [{"rounds": 1}, {"tie": -1.0}])
def test_bad_arguments(arguments: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match="Mixture: "):
        Mixture("a", **arguments)  # type: ignore[arg-type]  # what is wrong is tested


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ([1.0, 4.0] * 10, (1.0, 4.0)),
        ([1.0, 1.0, 1.0, 4.0] * 5, (1.0, 4.0)),
        ([1.0] * 14 + [4.0] * 6, None),  # a burst
        ([1.0 + 0.1 * step for step in range(20)], None),  # wide, without a gap
        ([1.0] * 20, None),
        ([1.0, 1.0] * 5 + [2.0, 2.5, 3.1, 3.9, 4.9, 6.0, 7.5, 9.0, 12.0, 15.0], None),  # noise
        ([0.0, 1e-9] * 10, None),
    ],
)
def test_two_populations(times: list[float], found: tuple[float, float] | None) -> None:
    assert two_populations(times) == found


def test_drift_sees_two_populations_whose_median_stays_where_it_was() -> None:
    drift = Drift(1.0)
    turns = [drift.tell(seconds) for seconds in [1.0, 1.0, 1.0, 4.0, 4.0] * 6]
    assert True in turns
    assert drift.populations == (1.0, 4.0)
    assert Drift(1.0).populations is None


def test_a_known_mixture_is_not_taken_for_a_drift() -> None:
    drift = Drift(1.0, mixed=True)
    assert not any(drift.tell(9.0) for _ in range(100))
