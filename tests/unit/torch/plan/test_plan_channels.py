"""Concatenations, parts and channel shuffles of values in channels last."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from plan_results import is_close, operations
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.torch.plan.layers.frozen_weights import FrozenWeights

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


class DenseBlock(nn.Module):
    """A block of DenseNet, whose concatenations nest or not, and the transition behind it."""

    def __init__(self, layers: int = 4, growth: int = 12, nested: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = [CHANNELS + growth * i for i in range(layers + 1)]
        self.nested = nested
        self.stem = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.norms = nn.ModuleList(map(nn.BatchNorm2d, widths))
        self.convs = nn.ModuleList(nn.Conv2d(one, growth, 3, padding=1) for one in widths[:-1])
        self.last = nn.Conv2d(widths[-1], 4, 1)
        for norm in self.norms:
            for one in (norm.weight, norm.running_var):
                nn.init.uniform_(one, 0.5, 1.5)
            for one in (norm.bias, norm.running_mean):
                nn.init.normal_(one)

    def forward(self, x: Tensor) -> Any:
        pieces = [self.stem(x)]
        for norm, conv in zip(self.norms, self.convs, strict=False):
            made = conv(norm(torch.cat(pieces, 1)).relu())
            pieces = [torch.cat([*pieces, made], 1)] if self.nested else [*pieces, made]
        return self.last(self.norms[-1](torch.cat(pieces, 1)).relu())


def program_of(plan: Any, x: Tensor) -> Any:
    return plan.program([x], torch.utils._pytree.tree_flatten(((x,), {}))[1])[0]


@pytest.mark.parametrize("nested", [True, False], ids=["nested", "flat"])
def test_a_layer_of_a_dense_block_reads_pieces_where_they_lie(nested: bool) -> None:
    model, x = DenseBlock(nested=nested).eval(), torch.randn(2, 3, 7, 5)
    plan = bt.optimize(model, x)
    assert operations(plan, x) == ["convolution", *["channels", "convolution"] * 5]
    read = [len(one.args) for one in program_of(plan, x).nodes if one.name.startswith("channels")]
    assert read == [1, 2, 3, 4, 5]
    assert is_close(plan, model, x)
    kinds = {one.problem for one in plan.explain().steps if one.name.startswith("batch_norm")}
    assert kinds == {"channels norm relu"}


def test_pieces_take_no_more_memory_than_concatenations() -> None:
    x, bytes_of = torch.randn(1, 3, 16, 16), {}
    for layers in (4, 8):
        memory = bt.optimize(DenseBlock(layers).eval(), x).explain().memory
        assert memory is not None
        bytes_of[layers] = memory.arena
    # The block, and what its last norm makes of it.
    assert bytes_of[8] <= 2 * 4 * 256 * (CHANNELS + 8 * 12) + bytes_of[4] // 2


def test_a_dense_block_is_saved_and_loaded() -> None:
    model, x, file = DenseBlock().eval(), torch.randn(2, 3, 7, 5), io.BytesIO()
    plan = bt.optimize(model, x)
    plan.save(file)
    again = bt.load(io.BytesIO(file.getvalue()))
    assert operations(again, x) == operations(plan, x)
    assert torch.equal(again(x), plan(x))
    plan.release()
    assert torch.equal(again(x), plan(x))


def test_a_dense_block_of_bfloat16() -> None:
    model, x = DenseBlock().eval().bfloat16(), torch.randn(2, 3, 7, 5).bfloat16()
    plan = bt.optimize(model, x)
    assert operations(plan, x).count("channels") == 5
    with torch.no_grad():
        right = copy.deepcopy(model).double()(x.double())
        error, theirs = ((one(x).double() - right).norm() for one in (plan, model))
    # Eleven values are rounded, each by 2^-9 of itself at random, and all reach the result.
    assert error <= max(2 * theirs, 4 * 2**-9 * right.norm())


def test_a_changed_norm_is_noticed() -> None:
    model, x = DenseBlock().eval(), torch.randn(2, 3, 7, 5)
    plan = bt.optimize(model, x)
    model.norms[2].running_mean.add_(1.0)
    with pytest.raises(TorchError, match="changed after the plan was made"):
        plan(x)


def test_nan_and_infinity_lie_where_the_model_has_them() -> None:
    model, x = DenseBlock().eval(), torch.randn(2, 3, 7, 5)
    plan = bt.optimize(model, x)
    x[0, 1, 3, 2], x[1, 2, 0, 0] = float("nan"), float("inf")
    with torch.no_grad():
        wanted, got = model(x), plan(x)
    torch.testing.assert_close(got.isnan(), wanted.isnan())


def normed_sum(one: Any, a: Tensor, b: Tensor) -> Any:
    return one.all(torch.cat([nn.functional.hardswish(one.norm(a) + a), b], 1))


def read_elsewhere(one: Any, a: Tensor, b: Tensor) -> Any:
    both = torch.cat([a, b], 1)
    return one.all(one.wide(both)), both.sin()


def added_itself(one: Any, a: Tensor, b: Tensor) -> Any:
    both = torch.cat([a, b], 1)
    return one.all(one.wide(both) + both)


def part_of_a_norm(one: Any, a: Tensor, b: Tensor) -> Any:
    return one.part(one.wide(torch.cat([a, b], 1))[:, 3 : 3 + CHANNELS])


def twice(one: Any, a: Tensor, b: Tensor) -> Any:
    inner = torch.cat([a, b], 1)
    return one.all(one.shuffle(torch.cat([inner, inner], 1)[:, CHANNELS : 3 * CHANNELS]))


@pytest.mark.parametrize(
    ("then", "steps"),
    [
        (normed_sum, ["channels", "channels", "convolution"]),
        (read_elsewhere, ["channels", "channels", "convolution", "aten.sin.default"]),
        (added_itself, ["channels", "channels", "convolution"]),
        (part_of_a_norm, ["channels", "channels", "convolution"]),
        (twice, ["channels", "channels", "convolution"]),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_norms_alone(then: Then, steps: list[str]) -> None:
    model, x = Branches(then), torch.randn(2, 3, 7, 5)
    model.norm, model.wide = nn.BatchNorm2d(CHANNELS), nn.BatchNorm2d(2 * CHANNELS)
    for norm in (model.norm, model.wide):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.running_mean)
    model.eval()
    plan = bt.optimize(model, x)
    made = [one for one in operations(plan, x) if one not in ("rows", "columns")]
    assert made == ["convolution", "convolution", *steps]
    with torch.no_grad():
        torch.testing.assert_close(plan(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_norm_far_from_its_mean_is_as_exact_as_the_models() -> None:
    """The product and the shift cancel, by 1,000 times the result."""
    norm = nn.BatchNorm2d(CHANNELS)
    nn.init.constant_(norm.running_mean, 1000.0)
    model, x = nn.Sequential(norm, nn.ReLU()).eval(), torch.randn(2, CHANNELS, 7, 5) + 1000.0
    plan = bt.optimize(model, x)
    assert "channels" in operations(plan, x)
    with torch.no_grad():
        right = copy.deepcopy(model).double()(x.double())
        assert (plan(x) - right).abs().max() <= 2 * 2**-24 * 2003


def test_a_file_whose_channels_do_not_fit_is_refused() -> None:
    model, x = Branches(concatenated).eval(), torch.randn(2, 3, 7, 5)
    plan = bt.optimize(model, x)
    node = next(one for one in program_of(plan, x).nodes if one.name.startswith("channels"))
    operation = node.meta["operation"]
    operation.check(node)
    for groups, start in ((5, 0), (0, 0), (1, 1), (1, -1), (True, 0), (2, "0")):
        with pytest.raises(ValueError, match="does not fit"):
            type(operation)(groups, start).check(node)


def test_a_file_whose_norm_does_not_fit_is_refused() -> None:
    model, x = DenseBlock().eval(), torch.randn(2, 3, 7, 5)
    nodes = program_of(bt.optimize(model, x), x).nodes
    first, second, *_ = (one for one in nodes if one.name.startswith("channels"))
    operation = second.meta["operation"]
    operation.check(second)
    wrong = [
        {"weights": first.meta["operation"].weights},
        {"weights": FrozenWeights(torch.ones(24, 1, 1, 1), None, None, 24)},
        {"weights": None},
        {"activation": "tan"},
        {"slope": float("inf")},
        {"groups": 2},
        {"start": 1},
        {"added": True},
        {"added": 1},
    ]
    for changes in wrong:
        with pytest.raises(ValueError, match=r"does not fit|activation 'tan' is unknown"):
            replace(operation, **changes).check(second)
