"""The policy of three stages: observe, tune, apply."""

from __future__ import annotations

import pytest

from bestof.errors import InvalidArgument
from bestof.selection.policies.rounds import Rounds
from bestof.selection.policies.window import Window


def window(start: int = 2, stop: int = 4, rounds: int = 2) -> Window:
    return Window(start, stop, Rounds(rounds=rounds))


def test_observes_with_the_first_tunes_inside_and_applies() -> None:
    policy = window()
    search = policy.start(["a", "b"])
    asked = []
    for _ in range(4):
        for _ in range(2):
            position = search.ask()
            asked.append(position)
            if position is not None:
                search.tell(position, (3.0, 2.0)[position])
        policy.step()
    assert asked == [0, 0, 0, 0, 0, 1, 0, 1]
    assert (search.ask(), search.winner, policy.missed, policy.steps) == (None, 1, 0, 4)


def test_observed_times_are_not_evidence() -> None:
    policy = window(start=1)
    search = policy.start(["a", "b"])
    assert search.ask() == 0
    search.tell(0, 0.001)
    policy.step()
    assert [search.best, search.ask()] == [0, 0]
    search.tell(0, 3.0)
    search.tell(1, 2.0)
    assert search.best == 1


def test_stored_evidence_counts_before_the_window() -> None:
    policy = window(start=1)
    search = policy.start(["a", "b"])
    for position in (0, 0, 1, 1):
        search.tell(position, (3.0, 2.0)[position])
    assert search.winner is None
    policy.step()
    assert search.winner == 1


@pytest.mark.parametrize(("told", "winner"), [([], 0), ([(0, 3.0)], 0), ([(0, 3.0), (1, 2.0)], 1)])
def test_open_searches_settle_on_their_best_at_the_end(
    told: list[tuple[int, float]], winner: int
) -> None:
    policy = window(start=0, stop=1)
    search = policy.start(["a", "b"])
    for position, seconds in told:
        assert search.ask() == position
        search.tell(position, seconds)
    policy.step()
    assert (search.ask(), search.winner) == (None, winner)
    search.tell(1 - winner, 0.001)
    assert search.winner == winner
    assert policy.missed == 0


def test_problems_after_the_window_take_the_first_and_are_counted_once() -> None:
    policy = window(start=0, stop=1)
    policy.step()
    late = policy.start(["a", "b"])
    assert [late.winner, late.winner, late.ask()] == [0, 0, None]
    known = policy.start(["a", "b"])
    for position in (0, 0, 1, 1):
        known.tell(position, (3.0, 2.0)[position])
    assert known.winner == 1
    assert policy.missed == 1


def test_a_dropped_first_alternative_is_replaced_by_the_next() -> None:
    policy = window(start=5, stop=6)
    search = policy.start(["a", "b"])
    search.drop(0)
    assert search.ask() == 1


@pytest.mark.parametrize("steps", [(-1, 3), (3, 3), (0, 1.5)])
def test_refuses_invalid_windows(steps: tuple[int, int]) -> None:
    with pytest.raises(
        InvalidArgument, match=r"Window: st(art|op)_step: expected an integer of at least"
    ):
        Window(*steps)


def test_refuses_a_window_inside_a_window() -> None:
    with pytest.raises(InvalidArgument, match="other than a window"):
        Window(0, 1, Window(0, 1))


def test_windows_around_several_policies_share_the_step() -> None:
    window = Window(1, 2)
    searches = [window.around(Rounds(rounds=n)).start(["a", "b"]) for n in (1, 2)]
    assert [search.ask() for search in searches] == [0, 0]
    for position in (0, 1):
        window.step()
        for search in searches:
            search.tell(position, 2.0 - position)
    assert [search.winner for search in searches] == [0, 0]
    late = window.around(Rounds()).start(["a", "b"])
    assert (late.winner, late.source, window.missed) == (0, "window", 1)


def test_an_order_to_tune_now_opens_the_window() -> None:
    window = Window(5, 6, Rounds(rounds=1))
    search = window.start(["a", "b"])
    assert (search.ask(), search.winner) == (0, None)
    with window.opened():
        for position in (0, 1):
            search.tell(position, 2.0 - position)
        assert (search.winner, search.source) == (1, None)
    assert search.winner is None
