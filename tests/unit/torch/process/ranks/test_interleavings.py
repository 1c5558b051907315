"""Ranks that read, write, die and withdraw decisions in many random orders decide alike."""

from __future__ import annotations

import pytest
from simulated_job import PROBLEM, SECONDS, Job

from bestof.selection.state.noise import is_noisy


def decided_alike(seed: int, actions: int) -> None:
    job = Job(seed, count=2 + seed % 3)
    job.run(actions)
    job.finish()
    decisions = {rank.decision for rank in job.living}
    assert len(decisions) == 1, f"seed {seed}: {[rank.decision for rank in job.living]}"
    assert decisions <= set(SECONDS), f"seed {seed}: no decision"


@pytest.mark.parametrize("block", range(5))
def test_any_order_of_a_few_hundred_actions(block: int) -> None:
    for seed in range(40 * block, 40 * (block + 1)):
        decided_alike(seed, 50 + seed % 350)


def test_ranks_out_of_step_do_not_replace_their_entries_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Delays that never fade keep the entries of one rank far ahead of the steps of another."""
    monkeypatch.setattr("bestof.torch.process.ranks.courier._FADE", 1.0)
    for seed in (1015, 1162, 2052, 2439, 2535, 2698, 2777, 3084):
        decided_alike(seed, 50 + seed % 700)


@pytest.mark.long
def test_a_thousand_orders() -> None:
    for seed in range(1000, 2000):
        decided_alike(seed, 50 + seed % 700)


def stored_apart(winners: tuple[str, ...], noise: float = 0.0) -> Job:
    """A job whose ranks have each found another winner, alone, in an earlier run."""
    job = Job(1, len(winners))
    for rank, winner in zip(job.ranks, winners, strict=True):
        rank.seconds[winner] = 1.8 if noise else 1.0
        for call in range(20):
            if noise:
                rank.seconds["good"] = 2.2 + noise * (call // len(SECONDS))
            rank.selector(PROBLEM)
        assert rank.decision == winner
        rank.seconds = dict(SECONDS)
        rank.selector = rank.new_selector()
        rank.called.clear()
    return job


def test_ranks_whose_stores_differ_take_one_decision() -> None:
    job = stored_apart(("as is", "awful", "good"))
    job.finish()
    decisions = {rank.decision for rank in job.ranks}
    assert decisions == {"as is"}, "the first rank that looks publishes its own"
    for rank in job.ranks:
        rank.call()
        assert rank.called[-1] == "as is"
    assert {rank.called[0] for rank in job.ranks} == {"as is", "awful", "good"}


def test_a_noisy_decision_of_an_earlier_run_is_verified_together() -> None:
    job = stored_apart(("best", "best"), noise=3.0)
    for rank in job.ranks:
        (record,) = rank.store.records()
        assert is_noisy(record.evidence, record.decision)
    job.run(200)
    job.finish()
    assert len({rank.decision for rank in job.ranks}) == 1
    assert len(set(job.ranks[0].called)) > 1, "it was searched again"
