"""Linear layers over the channels of pixels: layer scales, and residuals in channels last."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bestof.torch as bt
from bestof.torch.plan.operations.checks import operation_of
from bestof.torch.plan.operations.pixel_linear import PixelLinear
from bestof.torch.plan.optimized import OptimizedModel

INNER, OUTER = 12, 20
Then = Callable[[Any, Tensor, Tensor], Tensor]


class Block(nn.Module):
    """The end of a block of ConvNeXt, in one of several forms."""

    def __init__(self, then: Then) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before = nn.Conv2d(3, OUTER, 3, padding=1)
        self.up, self.down = nn.Linear(OUTER, INNER), nn.Linear(INNER, OUTER)
        self.scale = nn.Parameter(torch.rand(OUTER) + 0.5)
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        y = self.up(x.permute(0, 2, 3, 1))
        return self.then(self, x, F.gelu(y))


def usual(one: Any, x: Tensor, y: Tensor) -> Tensor:
    return x + (one.scale * one.down(y)).permute(0, 3, 1, 2)


def turned_about(one: Any, x: Tensor, y: Tensor) -> Tensor:
    return (one.down(y) * one.scale).permute(0, 3, 1, 2) + x


def without_scale(one: Any, x: Tensor, y: Tensor) -> Tensor:
    return x + one.down(y).permute(0, 3, 1, 2)


def read_twice(one: Any, x: Tensor, y: Tensor) -> Tensor:
    z = (one.scale * one.down(y)).permute(0, 3, 1, 2)
    return x + z + z.sigmoid()


def with_alpha(one: Any, x: Tensor, y: Tensor) -> Tensor:
    return torch.add(x, (one.scale * one.down(y)).permute(0, 3, 1, 2), alpha=2)


def other_turn(one: Any, x: Tensor, y: Tensor) -> Tensor:
    return x + (one.scale * one.down(y)).permute(0, 3, 2, 1)


def broadcast(one: Any, x: Tensor, y: Tensor) -> Tensor:
    return x[:, :, :1, :1] + one.down(y).permute(0, 3, 1, 2)


def scale_of_pixels(one: Any, x: Tensor, y: Tensor) -> Tensor:
    return x + (one.scale[:9, None] * one.down(y)).permute(0, 3, 1, 2)


def scale_read_before(one: Any, x: Tensor, y: Tensor) -> Tensor:
    z = one.down(y)
    return x + (one.scale * z + z).permute(0, 3, 1, 2)


def pixel_layers(plan: OptimizedModel) -> list[Any]:
    program = next(reversed(plan._programs.values()))[2]
    return [node for node in program.nodes if isinstance(operation_of(node), PixelLinear)]


@torch.no_grad()
@pytest.mark.parametrize(
    ("then", "fused"),
    [
        (usual, True),
        (turned_about, True),
        (without_scale, True),
        (read_twice, False),
        (with_alpha, False),
        (other_turn, False),
        (broadcast, False),
        (scale_of_pixels, False),
        (scale_read_before, False),
    ],
)
def test_the_residual_of_a_block_is_added_by_its_product(then: Then, fused: bool) -> None:
    model, x = Block(then).eval(), torch.randn(2, 3, 9, 9)
    plan = bt.optimize(model, x)
    for images in (x, torch.randn(1, 3, 9, 9)):
        torch.testing.assert_close(plan(images), model(images), rtol=1e-5, atol=1e-5)
    assert len(pixel_layers(plan)) == fused
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    torch.testing.assert_close(bt.load(file)(x), plan(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_scale_is_folded_into_a_linear_layer() -> None:
    class Scaled(nn.Module):
        def __init__(self, bias: bool) -> None:
            super().__init__()
            self.layer = nn.Linear(INNER, OUTER, bias=bias)
            self.scale = nn.Parameter(torch.randn(OUTER))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.layer(x) * self.scale)

    for bias in (False, True):
        model, x = Scaled(bias).eval(), torch.randn(5, INNER)
        plan = bt.optimize(model, x)
        torch.testing.assert_close(plan(x), model(x), rtol=1e-5, atol=1e-6)
        (step,) = [one.problem for one in plan.explain().steps if "linear" in one.problem]
        assert step.endswith(" relu")
        plan.release()
        torch.testing.assert_close(plan(x), model(x), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_a_node_of_a_file_that_does_not_fit_is_refused() -> None:
    plan = bt.optimize(Block(usual).eval(), torch.randn(2, 3, 9, 9), tune=False)
    (node,) = pixel_layers(plan)
    operation = operation_of(node)
    assert isinstance(operation, PixelLinear)
    operation.check(node)
    right = node.meta["val"]
    for wrong in (right[:1], right[:, 1:], right.bfloat16(), right.permute(0, 1, 3, 2)[:, :, :3]):
        node.meta["val"] = wrong
        with pytest.raises(ValueError, match="does not fit"):
            operation.check(node)
