"""Concatenations, parts and channel shuffles of values in channels last."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from plan_results import is_close, operations
from torch import Tensor, nn

import bestof.torch as bt

Then = Callable[[Any, Tensor, Tensor], Any]
CHANNELS = 12


class Branches(nn.Module):
    """Two convolutions, what joins them, and a convolution of some of the result."""

    def __init__(self, then: Then) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Conv2d(3, CHANNELS, 1), nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.part, self.all = nn.Conv2d(CHANNELS, 4, 1), nn.Conv2d(2 * CHANNELS, 4, 1)
        self.same = nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.shuffle = nn.ChannelShuffle(3)
        self.then = then

    def forward(self, x: Tensor) -> Any:
        return self.then(self, self.left(x), self.right(x))


def shuffled(a: Tensor, b: Tensor, groups: int = 2) -> Tensor:
    both = torch.cat([a, b], 1)
    n, c, h, w = both.shape
    return both.view(n, groups, c // groups, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


def unit(one: Branches, a: Tensor, b: Tensor) -> Tensor:
    """A unit of ShuffleNetV2, and the shuffle of the next one."""
    first, second = shuffled(a, b).chunk(2, 1)
    return shuffled(first, one.same(second).relu())


def concatenated(one: Branches, a: Tensor, b: Tensor) -> Tensor:
    return one.all(torch.cat([a, b], -3))


def in_three_groups(one: Branches, a: Tensor, b: Tensor) -> Tensor:
    return one.all(one.shuffle(torch.cat([a, b], 1)))


def part_alone(one: Branches, a: Tensor, b: Tensor) -> Tensor:
    return one.part(torch.cat([a, b], 1)[:, -15:-3])


def read_whole_too(one: Branches, a: Tensor, b: Tensor) -> Tensor:
    both = shuffled(a, b)
    return torch.cat([one.part(both[:, 5:17]), one.all(both), both], 1)


def shuffled_part(one: Branches, a: Tensor, b: Tensor) -> Tensor:
    part = torch.cat([a, b], 1)[:, :CHANNELS]
    return one.part(one.shuffle(part))


# The steps of a plan behind the first convolutions, which read an image in channels last.
CASES = {
    unit: ["channels", "channels", "convolution", "channels"],
    concatenated: ["channels", "convolution"],
    in_three_groups: ["channels", "convolution"],
    part_alone: ["channels", "convolution"],
    shuffled_part: ["channels", "channels", "convolution"],
    read_whole_too: ["channels", "channels", "convolution", "convolution", "channels"],
}


@pytest.mark.parametrize("then", CASES, ids=lambda one: one.__name__)
def test_one_step_gathers_channels(then: Then) -> None:
    model, x = Branches(then).eval(), torch.randn(2, 3, 7, 5)
    plan = bt.optimize(model, x)
    assert operations(plan, x) == ["rows", "convolution", "convolution", *CASES[then]]
    assert is_close(plan, model, x)


@pytest.mark.parametrize(
    "then",
    [
        lambda one, a, b: torch.cat([a, b], 2),
        lambda one, a, b: torch.cat([a, b.double().float()[:, :1]], 1),
        lambda _, a, b: a.view(2, 4, 3, 7, 5).transpose(1, 2).reshape(2, 12, 5, 7),
        lambda one, a, b: one.part(torch.cat([a, b], 1)[:, ::2]),
        lambda one, a, b: torch.cat([a, b], 1)[:, 3:5],
        lambda one, a, b: torch.cat([a, b.bfloat16()], 1),
    ],
    ids=["other axis", "of PyTorch", "other pixels", "stride", "a view", "two types"],
)
def test_others_are_right_too(then: Then) -> None:
    model, x = Branches(lambda one, a, b: then(one, a, b)).eval(), torch.randn(2, 3, 7, 5)
    with torch.no_grad():
        wanted = model(x)
        torch.testing.assert_close(bt.optimize(model, x)(x), wanted, rtol=1e-4, atol=1e-5)


def test_bfloat16_is_gathered_as_it_is() -> None:
    model, x = Branches(concatenated).eval().bfloat16(), torch.randn(2, 3, 7, 5).bfloat16()
    plan = bt.optimize(model, x)
    assert "channels" in operations(plan, x)
    with torch.no_grad():
        torch.testing.assert_close(plan(x), model(x), rtol=3e-2, atol=3e-2)


def test_it_is_saved_and_loaded() -> None:
    model, x, file = Branches(read_whole_too).eval(), torch.randn(2, 3, 7, 5), io.BytesIO()
    plan = bt.optimize(model, x)
    plan.save(file)
    again = bt.load(io.BytesIO(file.getvalue()))
    assert all(map(torch.equal, again(x), plan(x)))


def test_a_file_whose_channels_do_not_fit_is_refused() -> None:
    model, x = Branches(concatenated).eval(), torch.randn(2, 3, 7, 5)
    plan = bt.optimize(model, x)
    program, _ = plan.program([x], torch.utils._pytree.tree_flatten(((x,), {}))[1])
    node = next(one for one in program.nodes if one.name.startswith("channels"))
    operation = node.meta["operation"]
    operation.check(node)
    for groups, start in ((5, 0), (0, 0), (1, 1), (1, -1), (True, 0), (2, "0")):
        with pytest.raises(ValueError, match="does not fit"):
            type(operation)(groups, start).check(node)
