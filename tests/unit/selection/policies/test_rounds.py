"""The paper's policy: exact sequences, pruning, evidence told in advance, and its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations

import pytest

from bestof.errors import InvalidArgument
from bestof.selection.policies.rounds import Rounds, RoundsSearch


def play(search: RoundsSearch, seconds: Callable[[int, int], float]) -> list[int]:
    """Call what is asked for until it settles; `seconds(position, n)` is the time of the n-th call
    of position."""
    calls: list[int] = []
    while (position := search.ask()) is not None:
        search.tell(position, seconds(position, calls.count(position)))
        calls.append(position)
        assert len(calls) < 1000
    return calls


def test_goes_round_in_list_order_and_takes_the_lowest_median() -> None:
    search = Rounds(rounds=3).start(["a", "b", "c"])
    times = (
        [3.0, 3.0, 0.1],
        [2.0, 9.0, 2.0],
        [4.0, 1.0, 4.0],
    )  # lowest mean: a; lowest median: b; lowest time: a
    assert play(search, lambda position, n: times[position][n]) == [0, 1, 2] * 3
    assert search.winner == 1


@pytest.mark.parametrize("rounds", [1, 2, 10])
@pytest.mark.parametrize("alternatives", [1, 2, 7])
def test_settles_after_exactly_rounds_times_alternatives(rounds: int, alternatives: int) -> None:
    search = Rounds(rounds=rounds).start([str(position) for position in range(alternatives)])
    assert len(play(search, lambda position, n: 1.0 + position)) == rounds * alternatives
    assert search.winner == 0


def test_prunes_alternatives_slower_than_the_speedup_after_the_round() -> None:
    search = Rounds(rounds=6, pruning_speedup=10.0, prune_after_round=4).start(["a", "b", "c"])
    calls = play(
        search, lambda position, n: (10.0, 1.0, 10.5)[position]
    )  # 10.0 is not more than 10 times
    assert calls == [0, 1, 2] * 4 + [0, 1] * 2
    assert search.winner == 1


def test_never_prunes_with_an_infinite_speedup() -> None:
    search = Rounds(rounds=5, pruning_speedup=math.inf, prune_after_round=1).start(["a", "b"])
    assert play(search, lambda position, n: float(position)) == [0, 1] * 5


def test_equal_medians_go_to_the_first() -> None:
    search = Rounds(rounds=2).start(["a", "b", "c"])
    play(search, lambda position, n: (2.0, 1.0, 1.0)[position])
    assert search.winner == 1


def test_a_new_alternative_measures_only_itself() -> None:
    search = Rounds(rounds=3).start(["old", "new", "older"])
    for position in (2, 0):
        for _ in range(3):
            search.tell(position, 2.0)
    assert play(search, lambda position, n: 1.0) == [1, 1, 1]
    assert search.winner == 1


def test_a_new_hopeless_alternative_is_pruned_against_the_evidence() -> None:
    search = Rounds(rounds=10, prune_after_round=4).start(["old", "new"])
    for _ in range(10):
        search.tell(0, 1.0)
    assert play(search, lambda position, n: 20.0) == [1] * 4
    assert search.winner == 0


def test_resumes_where_it_stopped() -> None:
    search = Rounds(rounds=2).start(["a", "b"])
    search.tell(0, 1.0)
    assert play(search, lambda position, n: 1.0) == [1, 0, 1]


def test_the_order_of_evidence_does_not_matter() -> None:
    told = [(0, 5.0), (1, 30.0), (0, 4.0), (1, 31.0), (2, 2.0), (2, 50.0)]
    answers = set()
    for order in permutations(told):
        search = Rounds(rounds=3, prune_after_round=2, pruning_speedup=2.0).start(["a", "b", "c"])
        for position, seconds in order:
            search.tell(position, seconds)
        answers.add((search.ask(), search.winner, search.best))
    assert answers == {(0, None, 0)}


def test_dropping_the_best_brings_back_pruned_alternatives() -> None:
    search = Rounds(rounds=6, prune_after_round=2).start(["a", "b"])
    assert play(search, lambda position, n: (1.0, 50.0)[position]) == [0, 1, 0, 1, 0, 0, 0, 0]
    search.drop(0)
    assert search.winner is None
    assert play(search, lambda position, n: 50.0) == [1] * 4
    assert search.winner == 1


def test_late_samples_beyond_the_rounds_change_nothing() -> None:
    search = Rounds(rounds=1).start(["a", "b"])
    play(search, lambda position, n: 1.0 + position)
    for _ in range(5):
        search.tell(1, 0.1)
    assert search.winner == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rounds": 0}, "Rounds: rounds: expected an integer of at least 1; got 0"),
        ({"rounds": 2.0}, "Rounds: rounds: expected an integer of at least 1; got 2.0"),
        ({"rounds": True}, "Rounds: rounds: expected an integer of at least 1; got True"),
        (
            {"pruning_speedup": 0.5},
            "Rounds: pruning_speedup: expected a number of at least 1, got 0.5",
        ),
        (
            {"pruning_speedup": math.nan},
            "Rounds: pruning_speedup: expected a number of at least 1, got nan",
        ),
        (
            {"pruning_speedup": "4"},
            "Rounds: pruning_speedup: expected a number of at least 1, got '4'",
        ),
        (
            {"prune_after_round": 0},
            "Rounds: prune_after_round: expected an integer of at least 1; got 0",
        ),
    ],
)
def test_refuses_invalid_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Rounds(**arguments)  # type: ignore[arg-type]  # the wrong types are the point
    assert str(refused.value) == message


@pytest.mark.parametrize("names", [[], "ab", ["a", "a"]])
def test_refuses_names_that_name_nothing_or_twice(names: list[str]) -> None:
    with pytest.raises(InvalidArgument, match="alternatives: expected"):
        Rounds().start(names)


def test_reads_as_it_is_written() -> None:
    assert repr(Rounds(rounds=5)) == "Rounds(rounds=5, pruning_speedup=10.0, prune_after_round=4)"
