"""One hopeless trial prevents others: on its own problem, and on similar layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from bestof.selection import Alternative, BestOf
from bestof.selection.state.journal import TrialEntry
from bestof.selection.store.memory import MemoryStore
from bestof.torch.backends.device import CPU
from bestof.torch.ops.convolution.conv2d import Conv2d
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.estimate import dense
from bestof.torch.ops.convolution.overruns import Overruns
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.row import Row
from bestof.torch.ops.search_settings import COSTLY, RACE

RATE = 5e-12  # seconds an operation of a good kernel
# By name: the seconds of a call are so many times what the estimate says.
TRUTH = {"as is": 1.0, "slow": 1000.0, "fast": 0.7}


def problem(channels: int, kernel: int = 15, image: int = 56, **rest: Any) -> ConvProblem:
    groups = rest.get("groups", 1)
    x = torch.empty((2, channels, image, image), device="meta")
    w = torch.empty((channels, channels // groups, kernel, kernel), device="meta")
    return ConvProblem.of(x, w, False, (1, 1), (kernel // 2,) * 2, (1, 1), groups)


def unused(*_: Any) -> Tensor:
    raise AssertionError("only its estimate is read")


def catalogue() -> Conv2dPass:
    rows = (Row(name, unused, estimate=dense, accuracy="float32") for name in TRUTH)
    return Conv2d(CPU, tuple(rows))


class Program:
    """A network whose layers are called in turn, with a clock that their calls advance."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[str, ConvProblem]] = []
        self.seconds = dict.fromkeys(TRUTH, 0.0)
        self.overruns = Overruns(catalogue().estimates)

    def function(self, name: str) -> Callable[[ConvProblem], None]:
        def call(problem: ConvProblem) -> None:
            took = RATE * dense(problem) * TRUTH[name]
            self.now += took
            self.seconds[name] += took
            self.calls.append((name, problem))

        return call

    def selector(self, *, learns: bool = True, **options: Any) -> BestOf:
        return BestOf(
            "layers",
            [
                Alternative(
                    name,
                    self.function(name),
                    ["fake"],
                    hopeless=partial(self.overruns.is_hopeless, name) if learns else None,
                )
                for name in TRUTH
            ],
            lambda problem: problem,
            clock=lambda: self.now,
            on_event=self.overruns.listen,
            drift=False,
            **{"policy": RACE, "store": "off", **options},
        )

    def tried(self, name: str) -> int:
        return sum(one == name for one, _ in self.calls)


LAYERS = [problem(channels) for channels in range(16, 48)]


def test_a_network_of_similar_layers_pays_for_one_hopeless_trial() -> None:
    program = Program()
    selector = program.selector()
    for _ in range(20):
        for layer in LAYERS:
            selector(layer)
    assert program.tried("slow") == 1
    assert {selector.explain(layer).decision for layer in LAYERS} == {"fast"}


def test_without_correction_each_layer_pays_for_one() -> None:
    program = Program()
    selector = program.selector(learns=False)
    for _ in range(20):
        for layer in LAYERS:
            selector(layer)
    late = RATE * dense(LAYERS[0]) * (TRUTH["slow"] - 1.0)
    assert late > COSTLY  # so that one trial is enough by the race
    assert program.tried("slow") == len(LAYERS)


def test_what_was_left_out_is_known_to_the_next_run() -> None:
    store = MemoryStore()
    program = Program()
    first = program.selector(store=store)
    for _ in range(20):
        for layer in LAYERS[:2]:
            first(layer)
    begun = len(program.calls)
    second = program.selector(store=store)
    for layer in LAYERS[:2]:
        second(layer)
        assert second.explain(layer).decision == "fast"
    assert program.calls[begun:] == [("fast", layer) for layer in LAYERS[:2]]


@pytest.mark.parametrize(
    "other", [problem(32, 3), problem(32, groups=32), problem(32)._replace(dtype="bfloat16")]
)
def test_other_kinds_of_layers_are_tried(other: ConvProblem) -> None:
    program = Program()
    selector = program.selector()
    for _ in range(20):
        selector(LAYERS[0])
    assert program.overruns.is_hopeless("slow", LAYERS[1])
    assert not program.overruns.is_hopeless("slow", other)


def test_a_late_call_is_forgiven_once_another_was_not_late() -> None:
    overruns = Overruns(catalogue().estimates)
    layer = LAYERS[0]
    usual = RATE * dense(layer)

    def trial(name: str, seconds: float) -> None:
        overruns.listen(TrialEntry(layer, name, 0, seconds, True))

    trial("as is", usual)
    trial("slow", 100 * usual + 2 * COSTLY)
    assert overruns.is_hopeless("slow", LAYERS[1])
    trial("slow", 1.2 * usual)
    assert not overruns.is_hopeless("slow", LAYERS[1])


def test_a_small_loss_is_no_reason() -> None:
    overruns = Overruns(catalogue().estimates)
    small = problem(4, image=16)
    for name, factor in TRUTH.items():
        overruns.listen(TrialEntry(small, name, 0, RATE * dense(small) * factor, True))
    assert RATE * dense(small) * TRUTH["slow"] < COSTLY
    assert not overruns.is_hopeless("slow", small)


def test_a_rule_that_raises_takes_its_alternative_out() -> None:
    def raises(_: object) -> bool:
        raise OSError("no rule")

    selector = BestOf(
        "ruled",
        [("a", lambda: 1), Alternative("b", lambda: 2, hopeless=raises)],
        lambda: 0,
        store="off",
    )
    assert [selector() for _ in range(5)] == [1] * 5
    (_, row) = selector.explain().alternatives
    assert row.reason is not None
    assert "hopeless raised OSError: no rule" in row.reason
