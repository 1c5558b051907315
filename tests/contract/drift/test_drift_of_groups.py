"""Drift of groups: sums over stages, and passes that are open when a race is reopened."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from drifting_machine import WINDOW, Machine, drifts

from bestof import BestOf


def test_a_group_is_watched_by_the_sum_over_its_stages() -> None:
    machine = Machine(a0=3.0, a1=3.0, b0=1.0, b1=1.0)
    pairs = [(name, [machine.alternative(f"{name}{stage}") for stage in (0, 1)]) for name in "ab"]
    selector = BestOf("drifting", pairs, lambda x: x, 3, clock=machine.clock, store="off")

    def passes(count: int) -> None:
        for _ in range(count):
            first = selector(0, 1)
            assert selector(1, 1) == f"{first[0]}1"

    passes(6)
    assert selector.explain(1).decision == "b"
    machine.seconds.update(b0=1.2, b1=0.9)  # within the hysteresis, though one stage alone is not
    passes(2 * WINDOW)
    assert drifts(selector) == []
    machine.seconds.update(b1=9.0)
    passes(2 * WINDOW)
    assert drifts(selector) == [("b", 2.0, pytest.approx(10.2))]
    assert selector.explain(1).decision == "a"


def settled_group() -> tuple[Machine, BestOf]:
    """A group that was won by b."""
    machine = Machine(a0=3.0, a1=3.0, b0=1.0, b1=1.0)
    pairs = [(name, [machine.alternative(f"{name}{stage}") for stage in (0, 1)]) for name in "ab"]
    selector = BestOf("drifting", pairs, lambda x: x, 3, clock=machine.clock, store="off")
    for _ in range(6):
        selector(0, 1)
        selector(1, 1)
    return machine, selector


def reopen(machine: Machine, selector: BestOf) -> None:
    """b slows until its race is run again, and its last pass is finished."""
    machine.seconds.update(b0=9.0)
    while selector.explain(1).settled:
        assert [selector(0, 1), selector(1, 1)] == ["b0", "b1"]


def test_passes_of_the_hot_path_are_finished_by_their_alternative() -> None:
    machine, selector = settled_group()
    assert [selector(0, 1) for _ in range(5)] == ["b0"] * 5
    reopen(machine, selector)
    begun: list[str] = []
    other = threading.Thread(target=lambda: begun.append(selector(0, 1)))
    other.start()
    other.join()
    trials = selector.trials
    assert begun == ["b0"]
    assert [selector(1, 1) for _ in range(5)] == [
        "b1"
    ] * 5  # of passes that this thread began before
    assert selector.trials == trials


def test_a_reopened_group_races_at_once() -> None:
    machine, selector = settled_group()
    reopen(machine, selector)
    trials = selector.trials
    machine.calls.clear()
    for _ in range(6):
        selector(0, 1)
        selector(1, 1)
    assert machine.calls == ["b0", "b1", "a0", "a1"] * 3
    assert (selector.explain(1).decision, selector.trials) == ("a", trials + 12)


@pytest.mark.parametrize("from_the_start", [True, False])
def test_a_thread_that_finishes_the_passes_of_others_is_found_out(from_the_start: bool) -> None:
    machine, selector = settled_group()
    reopen(machine, selector)
    with ThreadPoolExecutor(1) as backward:
        for number in range(200):
            selector(0, 1)
            if from_the_start or number > 80:
                backward.submit(selector, 1, 1).result()
            else:
                selector(1, 1)
    assert selector.explain(1).decision == "a"
