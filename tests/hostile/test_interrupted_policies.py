"""An interrupt at any line of a policy makes no search lose its way, or decide for another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from interrupted import Interruption, places

from bestof.selection import policies
from bestof.selection.policies import Mixture, Neighbour, Race, Rounds, Window
from bestof.selection.policies.policy import OpenSearch, Policy

NAMES = ("a", "b", "c", "d")
SECONDS = (4.0, 1.0, 2.0, 1.5)
DROPPED = 1  # the fastest turns out to be wrong; the next is "d"
ROOM = str(Path(policies.__file__).parent)

POLICIES: dict[str, Callable[[], Policy]] = {
    "race": Race,
    "race, costly": lambda: Race(costly=0.5, hopeless=3.0),
    "one round": lambda: Rounds(1),
    "rounds": lambda: Rounds(3),
    "mixture": lambda: Mixture("a", rounds=8),
    "neighbour": lambda: Neighbour("b", Rounds(2), without=frozenset("acd")),
    "neighbour, patient": lambda: Neighbour("a", Race(max_trials=8), patience=3),
    "window": lambda: Window(0, 1000, Rounds(2)),
}


def play(policy: Policy, interruption: Interruption, drops: int | None) -> None:
    """Search as the engine does; the winner must be the fastest that is left.

    Whoever is asked for although it is out is dropped again, as `Tuning.ask` does: an interrupt may
    have come into `drop`. drops: before how many times the fastest is dropped.
    """
    search, out = policy.start(NAMES), set[int]()

    def drop() -> None:
        out.add(DROPPED)
        search.drop(DROPPED)

    for number in range(400):
        if number == drops:
            interruption.take(drop)
        position = _asked(search, interruption, out)
        if position is None:
            break
        interruption.take(lambda position=position: search.tell(position, SECONDS[position]))
    winner = search.winner
    while winner in out:
        search.drop(winner)
        winner = search.winner
    right = min(set(range(len(NAMES))) - out, key=SECONDS.__getitem__)
    assert winner == right, f"{winner} won, not {right}, after {interruption.where}"


def _asked(search: OpenSearch, interruption: Interruption, out: set[int]) -> int | None:
    found: list[int | None] = []
    for _ in range(20):
        found.clear()
        if not interruption.take(lambda: found.append(search.ask())):
            continue
        if found[0] not in out:
            return found[0]
        search.drop(DROPPED)
    raise AssertionError("the search asks again and again for what was dropped")


@pytest.mark.parametrize("drops", [None, 0, 1, 3])
@pytest.mark.parametrize("name", POLICIES)
def test_a_search_goes_on_and_finds_the_fastest(name: str, drops: int | None) -> None:
    def chosen(filename: str) -> bool:
        return filename.startswith(ROOM)

    made = POLICIES[name]
    count = places(lambda interruption: play(made(), interruption, drops), chosen)
    assert count > 10
    for place in range(1, count + 1):
        play(made(), Interruption(place, chosen), drops)
