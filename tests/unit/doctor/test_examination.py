"""Cures are tried in turn with what stood before, and judged by the seconds of the steps."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

import pytest
import torch

from bestof.doctor import examination as module
from bestof.doctor import table
from bestof.doctor.examination import Examination
from bestof.doctor.finding import Finding
from bestof.doctor.gain import Gain
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap, Treatment
from bestof.doctor.traps.inactive import Inactive
from bestof.errors import ProfileError
from bestof.processors import Room


class Slow(Trap):
    """Its steps take 3 s, and 1 s with the cure."""

    name = "slow"

    def __init__(self) -> None:
        self.cured, self.times = False, 0

    def treatment(self, seen: Seen) -> Treatment:
        return Treatment(lambda: self.turn(True), lambda: self.turn(False))

    def turn(self, cured: bool) -> None:
        assert self.cured is not cured  # never applied or undone twice
        self.cured, self.times = cured, self.times + 1

    def findings(self, seen: Seen) -> Sequence[Finding]:
        gain = seen.gains.get(self.name)
        return [
            Finding(self.name, gain is not None and gain.is_real, gain.factor if gain else None, "")
        ]


class Broken(Trap):
    name = "broken"

    def findings(self, seen: Seen) -> Sequence[Finding]:
        raise ValueError("this trap fails")


class NoRecorder:
    def __init__(self, *_: object) -> None: ...

    def start(self) -> None:
        raise ProfileError("nothing is profiled")


@pytest.fixture(autouse=True)
def _nothing_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Recorder", NoRecorder)


def examined(traps: Sequence[Trap], slow: Slow, deadline: float) -> list[Finding]:
    done: list[list[Finding]] = []
    seen = Seen(2, Room(2, "two processors"))
    examination = Examination(traps, seen, done.append, deadline=deadline, steps=lambda: 1)
    examination.pause(None)
    turns = 0
    while not done:
        examination.pause(1.0 if slow.cured else 3.0)
        turns += 1
        assert turns < 100
    return done[0]


def test_a_cure_is_tried_in_pairs_and_undone() -> None:
    slow = Slow()
    assert examined([slow], slow, monotonic() + 1e6) == [Finding("slow", True, 3.0, "")]
    assert slow.times == 2 * module.PAIRS
    assert not slow.cured


def test_a_cure_that_helps_may_stay_for_the_later_ones() -> None:
    slow = Slow()
    slow.keeps = True
    examined([slow], slow, monotonic() + 1e6)
    assert slow.cured


def test_nothing_is_tried_after_the_deadline() -> None:
    slow = Slow()
    told = "; there were too few steps to try a cure"
    assert examined([slow], slow, monotonic() - 1) == [Finding("slow", None, None, told)]
    assert slow.times == 0


def test_what_was_not_looked_at_is_not_denied() -> None:
    done: list[list[Finding]] = []
    seen = Seen(2, Room(2, "two processors"))
    model = torch.nn.Linear(3, 3)
    seen.optimizers = [torch.optim.Adam(model.parameters())]
    examination = Examination(
        table.traps(True), seen, done.append, deadline=monotonic() + 9, steps=lambda: 0
    )
    found = {one.trap: one for one in examination.findings()}
    looked_at = {"two OpenMP runtimes", "MKL on AMD", "torch.compile that falls back"}
    looked_at |= {"bestof inactive"}
    assert {name for name, one in found.items() if one.caught is not None} == looked_at
    assert found["optimizer not fused"].seen.startswith("Adam: not fused;")


def test_only_the_observed_turn_is_counted() -> None:
    seen = Seen(77, Room(2, "two processors"))
    made = 1
    seen.waited = 100.0
    examination = Examination([Slow()], seen, list, deadline=monotonic() + 1e6, steps=lambda: made)
    examination.pause(None)
    assert seen.threads == torch.get_num_threads()  # not what they were at the start
    made, seen.waited = 6, 103.0
    examination.pause(3.0)
    seen.waited = 500.0  # in later turns
    examination.pause(1.0)
    assert (seen.steps, seen.waits) == (5, 3.0)


def test_a_trap_that_fails_hides_no_other() -> None:
    slow = Slow()
    first, second = examined([Broken(), slow], slow, monotonic() + 1e6)
    assert first == Finding("broken", None, None, "ValueError: this trap fails")
    assert second.caught


@pytest.mark.parametrize(
    ("pairs", "factor", "real"),
    [
        ([(2.0, 1.0), (3.0, 1.0), (4.0, 1.0)], 3.0, True),
        ([(2.0, 1.0), (3.0, 1.0), (1.0, 1.1)], 2.0, False),  # one pair disagrees
        ([(1.04, 1.0)] * 3, 1.04, False),  # too little
        ([(1.9, 1.0)], 1.9, False),  # one pair alone proves little
        ([(3.0, 1.0)], 3.0, True),
    ],
)
def test_a_gain_is_real_if_all_pairs_agree(
    pairs: list[tuple[float, float]], factor: float, real: bool
) -> None:
    gain = Gain(pairs)
    assert gain.factor == pytest.approx(factor)
    assert gain.is_real is real


def test_what_is_known_is_told_before_a_slow_trap_is_looked_at() -> None:
    early: list[list[Finding]] = []

    class Slowest(Trap):
        name = "slowest"
        is_slow = True

        def findings(self, seen: Seen) -> Sequence[Finding]:
            assert [one.trap for one in early[0]] == ["broken", "slowest"]
            return [Finding(self.name, True, None, "found out")]

    examination = Examination(
        [Broken(), Slowest()],
        Seen(2, Room(2, "two processors")),
        list,
        deadline=monotonic(),
        steps=lambda: 0,
        early=early.append,
    )
    found = examination.findings()
    assert early[0][1] == Finding("slowest", None, None, "it was not found out")
    assert found == [early[0][0], Finding("slowest", True, None, "found out")]


def test_the_trap_that_may_try_pytorch_in_a_child_is_the_last_and_known_as_slow() -> None:
    """The trial may take minutes, and `bestof doctor` does not wait so long."""
    assert [one.name for one in table.traps(True) if one.is_slow] == [table.traps(True)[-1].name]
    assert isinstance(table.traps(True)[-1], Inactive)
