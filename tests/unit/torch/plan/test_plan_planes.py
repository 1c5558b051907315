"""Convolutions of a plan that read an input in channels first where it lies."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from plan_results import is_close, operations
from torch import Tensor, nn

import bestof.torch as bt
from bestof.torch.plan.algorithms.table import applicable
from bestof.torch.plan.optimized import OptimizedModel

SHAPE = 2, 3, 40, 44


def stem(stride: int = 2, kernel: int = 3) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 24, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(first, nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 8, 1)).eval()


def choice_of(plan: OptimizedModel) -> Any:
    program = next(reversed(plan._programs.values()))[2]
    return program, next(one for one in program.choices.values() if one.problem.planes)


def test_the_input_is_not_copied() -> None:
    model, x = stem(), torch.randn(SHAPE)
    plan = bt.optimize(model, x)
    assert operations(plan, x) == ["convolution", "convolution"]
    _, choice = choice_of(plan)
    assert "input in channels first" in str(choice.problem)
    assert is_close(plan, model, x)


@pytest.mark.parametrize(("stride", "kernel"), [(2, 3), (1, 3), (2, 7)])
def test_every_algorithm_is_right(stride: int, kernel: int) -> None:
    model, x = stem(stride, kernel), torch.randn(SHAPE)
    plan = bt.optimize(model, x)
    program, choice = choice_of(plan)
    names = applicable(choice.problem)
    assert "direct" in names
    assert len(names) > 2
    for name in [*names, "pytorch"]:
        choice.settle(name)
        program.bind_anew()
        assert is_close(plan, model, x), name


@pytest.mark.parametrize("name", ["direct", "convgemm"])
def test_inputs_of_any_strides(name: str) -> None:
    model, x = stem(), torch.randn(SHAPE)
    plan = bt.optimize(model, x)
    program, choice = choice_of(plan)
    choice.settle(name)
    program.bind_anew()
    wide = torch.randn(2, 3, 40, 88)
    for other in (x.contiguous(memory_format=torch.channels_last), wide[..., ::2], wide[..., 44:]):
        assert is_close(plan, model, other)
        with torch.inference_mode():
            assert plan(other).equal(plan(other.contiguous()))


def test_other_inputs_are_copied() -> None:
    model = stem()
    last = torch.randn(SHAPE).contiguous(memory_format=torch.channels_last)
    assert operations(bt.optimize(model, last), last)[0] == "rows"

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x).relu() + self.two(x).relu()

    x = torch.randn(SHAPE)
    plan = bt.optimize(Twice().eval(), x)
    assert operations(plan, x).count("rows") == 1


def test_what_pytorch_computes_is_read_where_it_lies() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = stem()

        def forward(self, x: Tensor) -> Tensor:
            return self.stem(torch.flip(x, [3]))

    model, x = Scaled().eval(), torch.randn(SHAPE)
    plan = bt.optimize(model, x)
    assert "rows" not in operations(plan, x)
    assert is_close(plan, model, x)


def test_a_file_keeps_it() -> None:
    model, x = stem(), torch.randn(SHAPE)
    plan = bt.optimize(model, x)
    _, choice = choice_of(plan)
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    loaded = bt.load(file)
    assert loaded(x).equal(plan(x))
    assert choice_of(loaded)[1].algorithm == choice.algorithm
