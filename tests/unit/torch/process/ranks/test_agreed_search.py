"""Ranks that follow one script, without processes: a log in memory, and ranks that read it late."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from bestof.selection import Race
from bestof.torch.process.ranks.agreed_search import MOST_TRIES, AgreedPolicy, AgreedSearch
from bestof.torch.process.ranks.entry import DECIDE, REOPEN, TRY, Entry
from bestof.torch.process.ranks.problem_log import ProblemLog

NAMES = ("as is", "good", "best", "awful")
SECONDS = {"as is": 3.0, "good": 2.2, "best": 2.0, "awful": 20.0}
AHEAD = 2


class Reader:
    """Carries the offers of one rank to a log in memory, and what stands there to the rank."""

    def __init__(self, entries: list[Entry]) -> None:
        self.written = entries
        self.log = ProblemLog("toy", self)
        self.broken = False
        self.steps_ahead = AHEAD

    def ahead(self) -> int:
        return self.steps_ahead

    def count_call(self, step: int) -> None:
        """Nobody looks because of it."""

    def carry(self, log: ProblemLog) -> None:
        """Wait for the next look."""

    def look(self) -> None:
        """What the courier does in one look."""
        while True:
            place, offer = len(self.log.entries), self.log.offered()
            if offer is not None and place == len(self.written):
                self.written.append(offer)
            if place == len(self.written):
                return
            self.log.entries.append(self.written[place])


class Rank:
    def __init__(self, log: list[Entry], seed: int, names: Sequence[str] = NAMES) -> None:
        self.reader = Reader(log)
        self.names = names
        self.step = 0
        self.noise = random.Random(seed)
        policy = AgreedPolicy(Race(), self.reader.log, lambda: self.step)
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
                rank.reader.look()


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
        alone.reader.broken = True  # its own search, as without other ranks
        trained([alone], 300)
        one += excess([alone])
        log: list[Entry] = []
        ranks = [Rank(log, 100 * run + number) for number in range(4)]
        trained(ranks, 300)
        four += excess(ranks)
        separate = [Rank([], 100 * run + number) for number in range(4)]
        for rank in separate:
            rank.reader.broken = True
        trained(separate, 300)
        apart += excess(separate)
    assert four <= 1.2 * one
    assert four < apart


def test_ranks_do_not_wait_for_the_next_entry() -> None:
    """It is offered so early that it holds when the tries of the one before have been made."""
    one, four = 0, 0
    for run in range(30):
        alone = Rank([], run)
        alone.reader.broken = True
        while alone.decision is None:
            trained([alone], 1)
        one += alone.step
        log: list[Entry] = []
        ranks = [Rank(log, 100 * run + number) for number in range(4)]
        while any(rank.decision is None for rank in ranks):
            trained(ranks, 1)
        four += ranks[0].step
    assert four <= 0.9 * one, "the first rank that has found a winner decides"


def test_tries_of_a_near_tie_go_on_until_a_rank_has_decided() -> None:
    search = Rank([], 0).search
    for _ in range(5):
        for position, seconds in enumerate((2.0, 2.05, 9.0, 20.0)):
            search.tell(position, seconds)
    search.ask()
    assert search.winner is None
    assert search.near_tie
    expected = search._expected(())
    assert len(expected) == MOST_TRIES
    assert set(expected) == {0, 1}


def test_an_entry_waits_until_the_tries_of_the_one_before_have_been_made() -> None:
    log = [Entry(TRY, 3, 5, 0, ("good", "best") * 2, "good"), Entry(TRY, 3, 6, 0, NAMES, "best")]
    rank = Rank(log, 0)
    rank.step = 4
    rank.reader.look()
    for rank.step in range(4, 12):
        rank.call()
    assert rank.called[1:5] == ["good", "best"] * 2
    assert rank.called[5] == NAMES[3], "three of the next tries have been missed"


def test_a_decision_waits_for_no_tries() -> None:
    log = [Entry(TRY, 3, 5, 0, ("good",) * 20, "good"), Entry(DECIDE, 3, 6, 0, (), "best")]
    rank = Rank(log, 0)
    rank.step = 4
    rank.reader.look()
    for rank.step in range(4, 8):
        rank.call()
    assert rank.called[1:] == ["good", "best", "best"]


def test_calls_take_the_best_of_the_entry_that_was_read_last() -> None:
    log = [Entry(TRY, 3, 5, 0, ("good",), "as is"), Entry(TRY, 3, 9, 0, ("awful",), "best")]
    rank = Rank(log, 0)
    rank.step = 4
    rank.reader.look()
    for rank.step in range(4, 10):
        rank.call()
    assert rank.called[1:] == ["good", "best", "best", "best", "awful"]


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
    late.reader.look()
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
    slow.reader.look()
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
            rank.reader.look()
    assert ranks[0].decision == ranks[1].decision is not None


def test_without_steps_it_works_call_by_call() -> None:
    log: list[Entry] = []
    ranks = [Rank(log, 0), Rank(log, 1)]
    for rank in ranks:
        rank.reader.steps_ahead = 0  # nobody counts steps
    for _ in range(400):
        for rank in ranks:
            rank.call()
            rank.reader.look()
    assert ranks[0].decision == ranks[1].decision is not None


def test_an_evaluation_that_counts_no_steps_settles_too() -> None:
    log: list[Entry] = []
    ranks = [Rank(log, 0), Rank(log, 1)]
    for rank in ranks:
        rank.step = 1000  # of the training before
    for _ in range(4000):
        for rank in ranks:
            rank.call()
            rank.reader.look()
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
    rank.reader.broken = True
    trained([rank], 200)
    assert rank.decision == "best"


def test_a_rank_that_reads_late_skips_what_it_has_missed() -> None:
    """The n-th call after an entry holds takes the n-th trial, whenever the entry was read."""
    entry = Entry(TRY, 3, 5, 0, NAMES + NAMES, "as is")
    ranks = [Rank([entry], number) for number in range(3)]
    for step in range(1, 13):
        for late, rank in enumerate(ranks):
            rank.step = step
            if step == 4 + 2 * late:
                rank.reader.look()
            rank.call()
    prompt, later, latest = (rank.called for rank in ranks)
    assert prompt[4:] == list(NAMES + NAMES)
    assert later[:5] == ["as is"] * 5
    assert later[5:] == prompt[5:]
    assert latest[:7] == ["as is"] * 7
    assert latest[7:] == prompt[7:]


def test_a_rank_that_has_missed_all_trials_of_an_entry_makes_them() -> None:
    rank = Rank([Entry(TRY, 0, 1, 0, ("good", "best"), "good")], 0)
    for rank.step in range(20):
        rank.call()
    rank.reader.look()
    assert [rank.call() for _ in range(3)] == ["good", "best", "good"]


def test_all_ranks_make_the_same_calls_if_they_read_with_different_delays() -> None:
    """Entries hold two steps ahead. A rank reads once in one, two or three steps."""
    for delay in (1, 2, 3):
        log: list[Entry] = []
        ranks = [Rank(log, 0), Rank(log, 1)]
        for step in range(400):
            for rank in ranks:
                rank.call()
                rank.step += 1
            ranks[0].reader.look()
            if step % delay == 0:
                ranks[1].reader.look()
        first, second = (rank.called for rank in ranks)
        same = sum(one == other for one, other in zip(first, second, strict=True))
        assert same >= len(first) - (0 if delay < 3 else 10)
        assert ranks[0].decision == ranks[1].decision is not None


def test_a_decision_that_is_withdrawn_is_searched_again_from_its_alternative() -> None:
    log = [Entry(DECIDE, 0, 0, 0, (), "good"), Entry(REOPEN, 0, 0, 0)]
    ranks = [Rank(log, 0), Rank(log, 1)]
    for rank in ranks:
        rank.reader.look()
        assert rank.call() == "good"
        assert rank.decision is None
    trained(ranks, 300)
    assert ranks[0].decision == ranks[1].decision is not None


def test_the_rank_whose_winner_drifts_calls_it_until_the_entry_is_read() -> None:
    log = [Entry(DECIDE, 0, 0, 0, (), "good")]
    rank = Rank(log, 0)
    rank.reader.look()
    policy = AgreedPolicy(Race(), rank.reader.log, lambda: rank.step, reopens=True)
    rank.search = policy.start(NAMES)
    assert [rank.call() for _ in range(5)] == ["good"] * 5
    assert rank.decision is None
    rank.reader.look()
    assert [entry.kind for entry in log] == [DECIDE, REOPEN]
    trained([rank], 300)
    assert rank.decision is not None
    assert [entry.kind for entry in log].count(REOPEN) == 1


def test_a_decision_that_this_rank_cannot_run_is_not_taken_here_until_the_next_race() -> None:
    log = [Entry(DECIDE, 0, 0, 0, (), "best")]
    rank = Rank(log, 0)
    rank.search.drop(NAMES.index("best"))
    rank.reader.look()
    trained([rank], 200)
    assert rank.decision == "good"
    log += [Entry(REOPEN, 0, 0, 0), Entry(DECIDE, 0, 0, 0, (), "as is")]
    rank.reader.look()
    assert rank.decision is None
    assert [rank.call() for _ in range(3)] == ["as is"] * 3
    assert rank.decision == "as is"


def test_the_decision_of_an_earlier_run_is_offered_and_yields_to_that_of_another_rank() -> None:
    log: list[Entry] = []
    ranks = [Rank(log, 0), Rank(log, 1)]
    ranks[0].search.favour(NAMES.index("good"))
    ranks[1].search.favour(NAMES.index("as is"))
    assert ranks[0].call() == "good"
    assert ranks[1].call() == "as is"
    for _ in range(4):
        trained(ranks, 1)
    assert log == [Entry(DECIDE, 0, AHEAD, 2, (), "good")]
    trained(ranks, 5)
    assert ranks[0].decision == ranks[1].decision == "good"


def test_times_that_never_count_make_few_entries() -> None:
    log: list[Entry] = []
    rank = Rank(log, 0)
    for _ in range(5000):
        rank.search.ask()
        rank.step += 1
        rank.reader.look()
    assert rank.decision is None
    assert len(log) < 25
