"""Ranks that follow one script, without processes: a log in memory, and ranks that read it late."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from bestof.selection import Race
from bestof.torch.ranks.agreed_search import AgreedPolicy, AgreedSearch
from bestof.torch.ranks.entry import Entry

NAMES = ("as is", "good", "best", "awful")
SECONDS = {"as is": 3.0, "good": 2.2, "best": 2.0, "awful": 20.0}
AHEAD = 2


@dataclass
class Paper:
    """The script as one rank has read it."""

    log: list[Entry]
    entries: list[Entry] = field(default_factory=list)
    broken: bool = False
    proposal: Entry | None = None

    def propose(self, entry: Entry) -> None:
        self.proposal = self.proposal or entry

    def ahead(self) -> int:
        return AHEAD

    def carry(self) -> None:
        """What the courier does in one look."""
        while True:
            place = len(self.entries)
            if self.proposal is not None and place == len(self.log):
                self.log.append(self.proposal)
            if place == len(self.log):
                return
            self.entries.append(self.log[place])
            self.proposal = None


class Rank:
    def __init__(self, log: list[Entry], seed: int, names: Sequence[str] = NAMES) -> None:
        self.paper = Paper(log)
        self.names = names
        self.step = 0
        self.noise = random.Random(seed)
        policy = AgreedPolicy(Race(), self.paper, lambda: self.step)
        self.search: AgreedSearch = policy.start(names)
        self.called: list[str] = []

    def call(self) -> str:
        decided = self.search.winner
        position = self.search.ask() if decided is None else decided
        assert position is not None
        name = self.names[position]
        if decided is None:
            self.search.tell(position, SECONDS[name] * (1.0 + 0.3 * self.noise.random()))
        self.called.append(name)
        return name

    @property
    def decision(self) -> str | None:
        winner = self.search.winner
        return None if winner is None else self.names[winner]


def trained(ranks: list[Rank], steps: int, late: random.Random | None = None) -> None:
    """All ranks in lockstep, one call a step; couriers that look at the log once a step, some of
    them late."""
    for _ in range(steps):
        for rank in ranks:
            rank.call()
        for rank in ranks:
            rank.step += 1
            if late is None or late.random() < 0.8:
                rank.paper.carry()


@pytest.mark.parametrize("count", [2, 4])
def test_fifty_runs_with_noise_and_no_decision_that_differs(count: int) -> None:
    for run in range(50):
        log: list[Entry] = []
        ranks = [Rank(log, 100 * run + number) for number in range(count)]
        trained(ranks, 400, random.Random(run))
        assert len({rank.decision for rank in ranks}) == 1
        assert ranks[0].decision in ("best", "good")


def test_all_ranks_try_the_same_alternative_in_the_same_step() -> None:
    log: list[Entry] = []
    ranks = [Rank(log, number) for number in range(4)]
    trained(ranks, 300)
    first = ranks[0].called
    assert all(rank.called == first for rank in ranks)
    assert set(first) == set(NAMES)
    assert first[-1] == ranks[0].decision


def excess(ranks: list[Rank]) -> float:
    """What the steps took beyond the best alternative; every step waits for the slowest rank."""
    steps = zip(*(rank.called for rank in ranks), strict=True)
    return sum(max(SECONDS[name] for name in names) - SECONDS["best"] for names in steps)


def test_tuning_four_ranks_costs_little_more_than_tuning_one() -> None:
    one, four, apart = 0.0, 0.0, 0.0
    for run in range(30):
        alone = Rank([], run)
        alone.paper.broken = True  # its own search, as without other ranks
        trained([alone], 300)
        one += excess([alone])
        log: list[Entry] = []
        ranks = [Rank(log, 100 * run + number) for number in range(4)]
        trained(ranks, 300)
        four += excess(ranks)
        separate = [Rank([], 100 * run + number) for number in range(4)]
        for rank in separate:
            rank.paper.broken = True
        trained(separate, 300)
        apart += excess(separate)
    assert four <= 1.2 * one
    assert four < apart


def test_a_rank_that_stops_holds_up_nobody() -> None:
    for last in (0, 1, 3, 5, 9, 12):
        log: list[Entry] = []
        ranks = [Rank(log, number) for number in range(3)]
        trained(ranks, last)
        trained(ranks[1:], 300)
        assert ranks[1].decision == ranks[2].decision is not None


def test_a_rank_that_begins_late_takes_what_was_decided() -> None:
    log: list[Entry] = []
    ranks = [Rank(log, 0), Rank(log, 1)]
    trained(ranks, 300)
    late = Rank(log, 2)
    late.paper.carry()
    for _ in range(3):
        assert late.call() == ranks[0].decision
    assert late.decision == ranks[0].decision


def test_a_rank_that_reads_late_decides_late_and_alike() -> None:
    log: list[Entry] = []
    quick, slow = Rank(log, 0), Rank(log, 1)
    for _ in range(300):
        trained([quick], 1)
        slow.call()
        slow.step += 1
    assert quick.decision is not None
    assert slow.decision is None
    assert set(slow.called) == {"as is"}  # nothing is tried that others do not try
    slow.paper.carry()
    for _ in range(3):
        slow.call()
    assert slow.decision == quick.decision


def test_unequal_numbers_of_calls_stop_nobody() -> None:
    log: list[Entry] = []
    ranks = [Rank(log, 0), Rank(log, 1)]
    for step in range(400):
        for number, rank in enumerate(ranks):
            for _ in range(1 if number else 1 + step % 3):
                rank.call()
            rank.step += 1
            rank.paper.carry()
    assert ranks[0].decision == ranks[1].decision is not None


def test_without_steps_it_works_call_by_call() -> None:
    log: list[Entry] = []
    ranks = [Rank(log, 0), Rank(log, 1)]
    for rank in ranks:
        rank.paper.ahead = lambda: 0  # type: ignore[method-assign]  # nobody counts steps
    for _ in range(400):
        for rank in ranks:
            rank.call()
            rank.paper.carry()
    assert ranks[0].decision == ranks[1].decision is not None


def test_an_evaluation_that_counts_no_steps_settles_too() -> None:
    log: list[Entry] = []
    ranks = [Rank(log, 0), Rank(log, 1)]
    for rank in ranks:
        rank.step = 1000  # of the training before
    for _ in range(4000):
        for rank in ranks:
            rank.call()
            rank.paper.carry()
    assert ranks[0].called == ranks[1].called
    assert ranks[0].decision == ranks[1].decision is not None


def test_an_alternative_that_fails_on_one_rank_is_called_on_the_others_alone() -> None:
    log: list[Entry] = []
    ranks = [Rank(log, 0), Rank(log, 1)]
    ranks[1].search.drop(NAMES.index("best"))
    trained(ranks, 300)
    assert "best" not in ranks[1].called
    assert all(rank.decision is not None for rank in ranks)
    assert ranks[1].decision != "best"


def test_an_alternative_that_another_rank_does_not_have_is_passed_over() -> None:
    log: list[Entry] = []
    ranks = [Rank(log, 0), Rank(log, 1, ("as is", "good", "awful"))]
    trained(ranks, 300)
    assert all(rank.decision is not None for rank in ranks)


def test_without_a_log_each_rank_searches_for_itself() -> None:
    rank = Rank([], 0)
    trained([rank], 3)
    rank.paper.broken = True
    trained([rank], 200)
    assert rank.decision == "best"


def test_entries_are_parsed_or_refused() -> None:
    entry = Entry(5, 7, ("a", "b"), "a", decided=True)
    assert Entry.parse(entry.text()) == Entry.parse(entry.text().encode()) == entry
    for text in ("", "[1, 2]", '{"step": 1}', '["x", 1, [], "a", false]'):
        with pytest.raises(ValueError, match="expected an entry"):
            Entry.parse(text)
