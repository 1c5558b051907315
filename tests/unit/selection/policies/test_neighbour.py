"""Searches that begin with a neighbour's decision."""

from __future__ import annotations

from bestof.selection.policies.neighbour import Neighbour
from bestof.selection.policies.rounds import Rounds


def test_begins_with_the_neighbours_decision_and_answers_in_the_positions_of_the_list() -> None:
    search = Neighbour("c", Rounds(rounds=1)).start(["a", "b", "c"])
    asked = []
    while (position := search.ask()) is not None:
        asked.append(position)
        search.tell(position, (2.0, 1.0, 3.0)[position])
    assert asked == [2, 0, 1]
    assert (search.winner, search.best) == (1, 1)


def test_near_ties_go_to_the_neighbours_decision() -> None:
    search = Neighbour("b").start(["a", "b"])
    while (position := search.ask()) is not None:
        search.tell(position, (0.999, 1.0)[position])
    assert search.winner == 1


def test_verifies_in_fewer_trials_than_a_whole_race() -> None:
    search, calls = Neighbour("b").start(["a", "b", "c"]), 0
    while (position := search.ask()) is not None:
        search.tell(position, (1.03, 1.0, 1.02)[position])
        calls += 1
    assert search.winner == 1
    assert calls <= 24


def test_a_name_that_is_gone_changes_nothing() -> None:
    search = Neighbour("gone", Rounds(rounds=1)).start(["a", "b"])
    assert search.ask() == 0


def test_dropping_the_neighbours_decision_leaves_the_others() -> None:
    search = Neighbour("b", Rounds(rounds=1)).start(["a", "b"])
    search.drop(1)
    assert search.ask() == 0
    search.tell(0, 1.0)
    assert search.winner == 0
