"""Frozen batch norms that models spell out are folded into their convolutions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from plan_results import operations
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import TorchError

CHANNELS = 8


class Frozen(nn.Module):
    """A norm of four buffers, computed by `spelling` from x and them."""

    def __init__(self, spelling: Callable[..., Tensor]) -> None:
        super().__init__()
        for name in ("weight", "bias", "mean"):
            self.register_buffer(name, torch.randn(CHANNELS))
        self.register_buffer("variance", torch.rand(CHANNELS) + 0.5)
        self.spelling = spelling

    def forward(self, x: Tensor) -> Tensor:
        return self.spelling(x, self.weight, self.bias, self.mean, self.variance)


def torchvision(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    w, b, mean, variance = (one.reshape(1, -1, 1, 1) for one in (w, b, mean, variance))
    scale = w * (variance + 1e-5).rsqrt()
    return x * scale + (b - mean * scale)


def detectron2(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    scale = w * (variance + 1e-5).rsqrt()
    shift = (b - mean * scale).reshape(1, -1, 1, 1)
    return x * scale.reshape(1, -1, 1, 1).to(x.dtype) + shift.to(x.dtype)


def by_division(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    scale = w / torch.sqrt(variance + 1e-5)
    return (b - scale * mean)[:, None, None] + scale[:, None, None] * x


def with_another_slope(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    scale = w * (variance + 1e-5).rsqrt()
    shift = b - mean * (w * (variance + 1e-3).rsqrt())
    return x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)


def with_added_mean(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    scale = w * (variance + 1e-5).rsqrt()
    return x * scale.view(1, -1, 1, 1) + (b + mean * scale).view(1, -1, 1, 1)


def with_alpha(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    scale = (w * (variance + 1e-5).rsqrt()).view(1, -1, 1, 1)
    shift = torch.sub(b.view(1, -1, 1, 1), mean.view(1, -1, 1, 1) * scale, alpha=2)
    return x * scale + shift


def along_width(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    scale = w * (variance + 1e-5).rsqrt()  # images are as wide as they have channels
    return x * scale + (b - mean * scale)


class Block(nn.Module):
    def __init__(self, spelling: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False)
        self.norms = nn.ModuleList(Frozen(spelling) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](self.first(x)).relu()
        return (y + self.norms[1](self.second(y))).relu()


def block(spelling: Callable[..., Tensor]) -> tuple[Block, Tensor]:
    torch.manual_seed(0)
    return Block(spelling).eval(), torch.randn(2, 3, CHANNELS, CHANNELS)


def check(plan: Callable[[Tensor], Tensor], model: Block, x: Tensor) -> None:
    wanted = copy.deepcopy(model).double()(x.double())
    # Slopes are at most 6 and sums have 27 terms: a few hundred roundings of numbers below 10.
    assert (plan(x) - wanted).abs().max() <= 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("spelling", [torchvision, detectron2, by_division])
def test_a_frozen_norm_is_part_of_its_convolution(
    spelling: Callable[..., Tensor], tmp_path: Path
) -> None:
    model, x = block(spelling)
    plan = bt.optimize(model, x)
    assert [one for one in operations(plan, x) if one != "rows"] == ["convolution"] * 2
    with torch.no_grad():
        check(plan, model, x)
        plan.save(tmp_path / "plan")
        check(bt.load(tmp_path / "plan"), model, x)


@pytest.mark.parametrize("spelling", [with_another_slope, with_added_mean, with_alpha, along_width])
def test_what_only_looks_like_one_is_computed_as_it_is(spelling: Callable[..., Tensor]) -> None:
    model, x = block(spelling)
    plan = bt.optimize(model, x)
    assert "aten.mul" in str(operations(plan, x))
    with torch.no_grad():
        check(plan, model, x)


def test_a_plan_refuses_to_run_with_a_changed_statistic() -> None:
    model, x = block(torchvision)
    plan = bt.optimize(model, x)
    model.norms[0].mean.add_(1.0)
    with pytest.raises(TorchError, match="changed"):
        plan(x)
