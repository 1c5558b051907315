"""A machine with a clock of its own, on which the times of alternatives can change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bestof import BestOf
from bestof.selection.state.journal import DriftEntry
from bestof.selection.state.sample_interval import FIRST

# On the fake clock calls take seconds, so samples lie 8 to 24 calls apart: nine of them within so
# many.
WINDOW = FIRST + 9 * 24


class Machine:
    """A clock, and alternatives whose seconds a call can be changed."""

    def __init__(self, **seconds: float) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.calls: list[str] = []
        self.inside: Callable[[], object] = lambda: None

    def clock(self) -> float:
        return self.now

    def alternative(self, name: str) -> Callable[..., str]:
        def called(*args: Any) -> str:
            self.calls.append(name)
            self.now += self.seconds[name]
            self.inside()
            return name

        return called

    def selector(self, **options: Any) -> BestOf:
        pairs = [(name, self.alternative(name)) for name in self.seconds]
        options = {"store": "off", "policy": "rounds:rounds=3", **options}
        return BestOf("drifting", pairs, lambda *args: args[0], clock=self.clock, **options)


def settled(machine: Machine, **options: Any) -> BestOf:
    selector = machine.selector(**options)
    for _ in range(3 * len(machine.seconds)):
        selector(1)
    assert selector.explain(1).settled
    return selector


def drifts(selector: BestOf) -> list[tuple[str, float, float]]:
    return [entry[1:] for entry in selector.journal.entries() if isinstance(entry, DriftEntry)]


def calls(selector: BestOf, count: int = WINDOW) -> None:
    for _ in range(count):
        selector(1)
