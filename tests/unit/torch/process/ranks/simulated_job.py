"""Ranks of a job in one thread: real selectors and couriers, a store in memory, random delays.

At every operation on the store, other ranks may go on: call, step, read the log, withdraw a
decision. So an operation is late by as much as the random numbers say, and any two ranks overlap in
any way that the store allows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bestof import BestOf
from bestof.selection.state.registry import Defaults
from bestof.selection.store.memory import MemoryStore
from bestof.torch.process.ranks.agreement import Agreement

SECONDS = {"as is": 3.0, "good": 2.2, "best": 2.0, "awful": 9.0}
PROBLEM = 5
DEEPEST = 2  # operations on the store that wait for one another


class Store:
    """What `torch.distributed` does with keys; `interrupt` runs around every operation."""

    def __init__(self, values: dict[str, str], interrupt: Callable[[], None]) -> None:
        self.values = values
        self.interrupt = interrupt

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        assert expected == ""
        self.interrupt()
        found = self.values.setdefault(key, desired)
        self.interrupt()
        return found.encode()

    def check(self, keys: list[str]) -> bool:
        self.interrupt()
        found = all(key in self.values for key in keys)
        self.interrupt()
        return found

    def get(self, key: str) -> bytes:
        self.interrupt()
        return self.values[key].encode()


class Rank:
    """One rank: its selector, whose clock has this rank's noise, and its agreement."""

    def __init__(self, job: Job, seed: int) -> None:
        self.now = 0.0
        self.steps = 0
        self.noise = random.Random(seed)
        self.called: list[str] = []
        self.dead = self.looking = False
        self.pace = job.random.choice((1, 1, 3, 10))  # how often it acts
        store = Store(job.values, lambda: job.interrupt(self))
        group = object()
        self.agreement = Agreement(
            lambda: (group, lambda: store), lambda: self.steps, background=False
        )
        self.seconds = dict(SECONDS)
        self.store = MemoryStore()
        self.selector = self.new_selector()

    def new_selector(self) -> BestOf:
        """Return a selector as that of a process that has just begun; the store stays."""
        alternatives = [(name, self.alternative(name)) for name in SECONDS]
        return BestOf(
            "toy",
            alternatives,
            lambda x: x,
            policy="rounds:rounds=2",
            clock=lambda: self.now,
            store=self.store,
        )

    def alternative(self, name: str) -> Callable[[int], None]:
        def call(problem: int) -> None:
            self.called.append(name)
            self.now += self.seconds[name] * (1.0 + 0.5 * self.noise.random())

        return call

    @property
    def decision(self) -> str | None:
        decision = self.selector._knowledge.decisions.get(PROBLEM)
        return None if decision is None else decision.alternative

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the selectors of the process be those of this rank."""
        before, Defaults.agreement = Defaults.agreement, self.agreement
        try:
            yield
        finally:
            Defaults.agreement = before

    def call(self) -> None:
        with self.running():
            self.selector(PROBLEM)

    def look(self) -> None:
        if self.looking:  # a rank has one courier
            return
        self.looking = True
        try:
            with self.running():
                self.agreement.look()
        finally:
            self.looking = False

    def withdraw(self) -> None:
        """Do what a drift of the winner does on this rank."""
        watch, knowledge = self.selector._watch, self.selector._knowledge
        with self.running(), knowledge.lock:
            decision, winner = knowledge.decisions.get(PROBLEM), knowledge.winner(PROBLEM)
            if decision is not None and winner is not None:
                watch._race_again(decision, winner, 9.0, None)


class Job:
    """Several ranks, and the random order in which they act."""

    def __init__(self, seed: int, count: int) -> None:
        self.random = random.Random(seed)
        self.values: dict[str, str] = {}
        self.depth = 0
        self.overlap = self.random.choice((0.0, 0.1, 0.5))
        self.ranks = [Rank(self, 100 * seed + number) for number in range(count)]

    @property
    def living(self) -> list[Rank]:
        return [rank for rank in self.ranks if not rank.dead]

    def interrupt(self, rank: Rank) -> None:
        """Let ranks act while `rank` waits for the store."""
        if self.depth >= DEEPEST:
            return
        self.depth += 1
        while self.random.random() < self.overlap:
            self.act()
        self.depth -= 1

    def act(self) -> None:
        """Let one living rank do one thing."""
        living = self.living
        rank = self.random.choices(living, [one.pace for one in living])[0]
        what = self.random.random()
        if what < 0.45:
            rank.call()
        elif what < 0.65:
            rank.steps += 1
        elif what < 0.97:
            rank.look()
        else:
            rank.withdraw()

    def run(self, actions: int) -> None:
        """Act in a random order; now and then a rank dies, but never the last two."""
        for _ in range(actions):
            self.act()
            if len(self.living) > 2 and self.random.random() < 0.002:
                self.random.choice([rank for rank in self.living if not rank.looking]).dead = True

    def finish(self, rounds: int = 400) -> None:
        """Let all living ranks go on without delays, until each has a decision."""
        self.overlap = 0.0
        for _ in range(rounds):
            for rank in self.living:
                rank.call()
            for rank in self.living:
                rank.look()
                rank.steps += 1
            before = len(self.values)
            if all(rank.decision is not None for rank in self.living):
                for rank in self.living * 2:
                    rank.look()
                if len(self.values) == before and all(rank.decision for rank in self.living):
                    return
