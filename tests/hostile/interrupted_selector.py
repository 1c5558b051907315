"""Selectors for `interrupted.py`: what they do before, during and after an interrupt, and what must
hold.

A scenario makes a fresh selector, and calls it while the interruption is armed. Then it goes on
without, and looks at everything: results, decision, check, store, locks, trials.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from interrupted import (
    Interrupt,
    Interruption,
    TimeLimit,
    assert_nothing_is_open,
    sweep,
)

from bestof import Alternative, BestOf
from bestof.selection.state.journal import DecisionEntry
from bestof.selection.store.memory import MemoryStore
from bestof.selection.trials.trial import current_trial, detours

SELECTION = str(Path(__import__("bestof").__file__).parent / "selection")
STEPS_AFTER = 60


class World:
    """A clock that alternatives advance, and the steps of a program that calls a selector."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cost = {"slow": 3.0, "fast": 1.0, "middle": 2.0, "wrong": 0.5, "broken": 0.2}
        self.store = MemoryStore()
        self.selectors: list[BestOf] = []
        self.winner = "fast"
        self.compares = False
        self.inherits = False  # decisions of another selector, which its own journal does not have
        self.steps = 12
        self.steps_after = STEPS_AFTER
        self.step: Callable[[], object] = lambda: None

    def plain(self, name: str) -> Callable[[float], float]:
        """Return an alternative that doubles, if its name does not say otherwise."""

        def called(x: float) -> float:
            self.now += self.cost[name]
            if name == "broken":
                raise OSError("broken")
            return -1.0 if name == "wrong" else 2.0 * x

        return called

    def group(self, name: str) -> list[Callable[..., Any]]:
        """Return a forward and a backward, which must belong together."""

        def forward(x: float) -> tuple[str, float]:
            self.now += self.cost[name]
            return name, (-1.0 if name == "wrong" else 2.0 * x)

        def backward(got: tuple[str, float], x: float) -> float:
            # A comparison calls the backward of the first one, too, with the same arguments.
            assert got[0] == name or self.compares, f"{got[0]} began this pass, {name} ended it"
            self.now += self.cost[name]
            return 3.0 * x

        return [forward, backward]

    def alternatives(self, *names: str) -> list[Alternative]:
        return [Alternative(one, self.plain(one), depends=["fake"]) for one in names]

    def make(self, alternatives: list[Any], size: Any = lambda *_: 0, **options: Any) -> BestOf:
        options = {"policy": "rounds:rounds=2", "store": self.store, "drift": False, **options}
        made = BestOf("interrupted", alternatives, size, clock=lambda: self.now, **options)
        self.selectors.append(made)
        return made

    def call(self, selector: BestOf, x: float = 1.0) -> None:
        got = selector(x)
        assert got == 2.0 * x, f"a wrong result: {got}"

    def run(self, interruption: Interruption) -> None:
        """Run all, and raise AssertionError if anything is not as it must be."""
        with interruption.armed():
            for _ in range(self.steps):
                try:
                    self.step()
                except (Interrupt, TimeLimit):
                    assert interruption.happened
        for _ in range(self.steps_after):
            self.step()
        self.look()

    def look(self) -> None:
        assert_nothing_is_open(self.selectors)
        for selector in self.selectors:
            for row in selector.explain(1.0).alternatives:
                out = row.name in ("wrong", "broken")
                assert out or row.reason is None, f"{row.name} is out: {row.reason}"
            if not self.inherits:
                self._look_at_journal(selector)
        decision = self.selectors[-1].explain(1.0).decision
        assert decision == self.winner, f"decided for {decision}"
        for record in self.store.records():
            if record.decision is not None and record.selector == self.selectors[-1].name:
                assert record.decision == self.winner, f"stored {record.decision}"

    def _look_at_journal(self, selector: BestOf) -> None:
        knowledge = selector._knowledge
        last: dict[Hashable, str] = {}
        for entry in knowledge.journal.entries():
            if isinstance(entry, DecisionEntry):
                last[entry.problem] = entry.alternative
        for problem, decision in knowledge.decisions.items():
            told = last.get(problem)
            assert told == decision.alternative, f"the journal has {told} for {problem}"


def _plain(policy: str) -> Callable[[World], None]:
    def prepare(world: World) -> None:
        world.selectors.clear()
        it = world.make(world.alternatives("slow", "fast", "middle"), policy=policy)
        world.step = lambda: world.call(it)

    return prepare


def _checked(world: World) -> None:
    it = world.make(world.alternatives("slow", "wrong", "fast"), check=1e-5)
    world.step = lambda: world.call(it)


def _broken(world: World) -> None:
    it = world.make(world.alternatives("slow", "broken", "fast"))
    world.step = lambda: world.call(it)


def _checked_every(world: World) -> None:
    it = world.make(world.alternatives("slow", "wrong", "fast"), check=1e-5, check_every=2)
    world.step = lambda: world.call(it)


def _spoilt(world: World) -> None:
    """The winner is settled, and gives a wrong result from then on, which a comparison finds."""
    spoilt: list[bool] = []
    fast = world.plain("fast")
    pairs = [
        ("slow", world.plain("slow")),
        ("wrong", lambda x: fast(x) * (1.0 - len(spoilt))),
        ("middle", world.plain("middle")),
    ]
    it = world.make(pairs, check=1e-5, check_every=1, store="off")
    for _ in range(12):
        world.call(it)
    spoilt.append(True)
    world.winner = "middle"
    world.step = lambda: world.call(it)


def _group(world: World, **options: Any) -> None:
    names = ("slow", "wrong", "fast") if "check" in options else ("slow", "fast")
    it = world.make([(name, world.group(name)) for name in names], **options)

    def step() -> None:
        got = it(0, 1.0)
        assert got[1] == 2.0, f"a wrong result: {got}"
        assert it(1, got, 1.0) == 3.0

    world.step = step


def _checked_group(world: World) -> None:
    world.compares = True
    same = lambda one, other: one[1] == other[1] if isinstance(one, tuple) else one == other  # noqa: E731
    _group(world, check=same)


def _group_of_one_thread_more(world: World) -> None:
    """Forward passes come first, backward passes in reverse order."""
    it = world.make([(name, world.group(name)) for name in ("slow", "fast")])

    def step() -> None:
        got = [it(0, float(x)) for x in range(3)]
        for x in reversed(range(3)):
            assert it(1, got[x], float(x)) == 3.0 * x

    world.step = step


def _stored(names: tuple[str, ...], **options: Any) -> Callable[[World], None]:
    """A healthy store decides at once; the decision is verified by its first calls."""

    def prepare(world: World) -> None:
        first = world.make(world.alternatives(*names), **options)
        for _ in range(20):
            world.call(first)
        world.selectors.clear()
        it = world.make(world.alternatives(*names), **options)
        world.step = lambda: world.call(it)

    return prepare


def _stored_group(world: World) -> None:
    _group(world)
    for _ in range(20):
        world.step()
    world.selectors.clear()
    _group(world)


def _pinned(world: World) -> None:
    world.store.pin("interrupted", "middle")
    it = world.make(world.alternatives("slow", "fast", "middle"))
    world.winner = "middle"
    world.step = lambda: world.call(it)


def _drifting(world: World, *, grouped: bool = False) -> None:
    """The winner becomes slower, and its race is run again."""
    if grouped:
        _group(world, drift=True, policy="race")
    else:
        it = world.make(world.alternatives("slow", "middle", "fast"), drift=True, policy="race")
        world.step = lambda: world.call(it)
    for _ in range(40):
        world.step()
    world.cost["fast"] = 10.0
    world.winner = "slow" if grouped else "middle"
    world.steps = 240
    world.steps_after = 4000  # after a sample that was interrupted, the next 1,024 calls are not


def _nested(world: World) -> None:
    inner = BestOf(
        "inner",
        world.alternatives("middle", "fast"),
        lambda x: 0,
        clock=lambda: world.now,
        policy="rounds:rounds=2",
        store=world.store,
        drift=False,
    )
    slow = world.plain("slow")
    it = world.make([Alternative("slow", lambda x: slow(x), ["fake"]),
                     Alternative("fast", lambda x: inner(x), ["fake"])])  # fmt: skip
    world.selectors[:0] = [inner]
    world.step = lambda: world.call(it)


def _neighbours(world: World) -> None:
    it = world.make(
        world.alternatives("slow", "fast", "middle"),
        lambda x: x,
        neighbours=lambda x: [x - 1.0, x + 1.0],
        policy="race",
    )
    for _ in range(20):
        world.call(it, 2.0)
    world.step = lambda: world.call(it)


def _evicting(world: World) -> None:
    it = world.make(
        world.alternatives("slow", "fast"), lambda x: x, max_problems=4, policy="rounds:rounds=1"
    )

    def step() -> None:
        for x in (0.0, 2.0, 3.0, 4.0, 5.0, 1.0, 1.0, 1.0):  # the last is not evicted
            world.call(it, x)

    world.step = step


def _copied(world: World) -> None:
    world.inherits = True
    it = world.make(world.alternatives("slow", "wrong", "fast"), check=1e-5)
    made = [it]

    def step() -> None:
        if len(made) == 1:
            for _ in range(3):
                world.call(it)
            made.append(copy.copy(it))
            world.selectors.append(made[-1])
        world.call(made[-1])

    world.step = step


SCENARIOS: dict[str, Callable[[World], None]] = {
    "rounds": _plain("rounds:rounds=2"),
    "race": _plain("race"),
    "check": _checked,
    "broken": _broken,
    "check every": _checked_every,
    "spoilt": _spoilt,
    "group": _group,
    "checked group": _checked_group,
    "many passes": _group_of_one_thread_more,
    "stored": _stored(("slow", "fast", "middle")),
    "stored, checked": _stored(("slow", "wrong", "fast"), check=1e-5),
    "stored, broken": _stored(("slow", "broken", "fast")),
    "stored group": _stored_group,
    "pinned": _pinned,
    "drift": _drifting,
    "drift of a group": lambda world: _drifting(world, grouped=True),
    "nested": _nested,
    "neighbours": _neighbours,
    "evicting": _evicting,
    "copied": _copied,
}


def in_engine(filename: str) -> bool:
    """Return whether a file belongs to the engine."""
    return filename.startswith(SELECTION)


def faults(
    name: str,
    *,
    instructions: bool = False,
    kind: type[BaseException] = Interrupt,
    every: int = 1,
    first: int = 1,
) -> tuple[int, list[str]]:
    """Interrupt a scenario at every place, or every so many. Return their number, and faults."""

    def run(interruption: Interruption) -> None:
        world = World()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            SCENARIOS[name](world)
            world.run(interruption)

    def clean() -> None:
        detours.clear()
        current_trial.set(None)

    return sweep(
        name,
        run,
        in_engine,
        instructions=instructions,
        kind=kind,
        every=every,
        first=first,
        clean=clean,
    )


if __name__ == "__main__":
    import sys
    import time

    begun = time.perf_counter()
    for chosen in sys.argv[2:] or SCENARIOS:
        number, wrong = faults(chosen, instructions=sys.argv[1] == "instructions")
        print(
            f"{chosen}: {number} places, {len(wrong)} faults",
            f"{time.perf_counter() - begun:.0f} s",
        )
        for one in wrong[:12]:
            print("   ", one)
