"""Reshaped values of a plan: views if the layout allows it, else copies."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.torch.plan.layers.window import Window, pooling_runner
from bestof.torch.plan.operations.channels import ToChannelsFirst
from bestof.torch.plan.optimized import OptimizedModel

X = torch.linspace(-1, 1, 3 * 3 * 12 * 12).reshape(3, 3, 12, 12)


class Net(nn.Module):
    def __init__(self, forward: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.other = nn.Conv2d(8, 8, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.few = nn.Linear(8, 5)
        self.many = nn.Linear(8 * 12 * 12, 5)
        self.pixels = nn.Linear(12 * 12, 5)
        self.function = forward

    def forward(self, x: Tensor) -> Any:
        return self.function(self, self.convolution(x))


def patches_read_late(net: Any, h: Tensor) -> Tensor:
    """The view is read, as it lies, once three more values were written."""
    flat = h.flatten(2)
    for _ in range(3):
        h = net.other(h)
    return net.few(flat.transpose(1, 2)) + net.few(net.pool(h).flatten(1))[:, None]


def read_late(net: Any, h: Tensor) -> Tensor:
    """The view outlives other values, which must not take its place."""
    pooled, flat = net.pool(h).flatten(1), h.flatten(1)
    for _ in range(3):
        h = net.other(h)
    return net.few(pooled) + net.many(flat) + net.few(net.pool(h).reshape(-1, 8))


KINDS: dict[str, tuple[Callable[[Any, Tensor], Any], list[str]]] = {
    "of one pixel": (lambda net, h: net.few(net.pool(h).flatten(1)), []),
    "of a view": (lambda net, h: net.few(net.pool(h).flatten(1).reshape(-1, 1, 8).flatten(1)), []),
    "of many pixels": (lambda net, h: net.many(h.view(h.shape[0], -1)), ["to channels first"]),
    "twice": (
        lambda net, h: net.many(h.flatten(1)) + h.reshape(len(h), 8, -1).sum((1, 2))[:, None],
        ["to channels first"],
    ),
    "read late": (read_late, ["to channels first"]),
    "returned": (lambda net, h: (net.pool(h).flatten(1), h.reshape(len(h), 8, 144)), []),
    "patches": (lambda net, h: net.few(h.flatten(2).transpose(1, 2)), []),
    "patches, by a view": (
        lambda net, h: net.few(h.view(len(h), 8, -1).permute(0, 2, 1)),
        [],
    ),
    "patches, read late": (patches_read_late, []),
    "patches, returned": (
        lambda net, h: (net.few(t := h.flatten(2).transpose(1, 2)), t),
        [],
    ),
    "rows of pixels": (lambda net, h: net.pixels(h.flatten(2)), ["to channels first"]),
    "reshaped twice": (lambda net, h: net.many(h.flatten(2).flatten(1)), ["to channels first"]),
    "shuffled": (
        lambda net, h: net.other(h.view(len(h), 2, 4, 12, 12).transpose(1, 2).reshape(h.shape)),
        [],
    ),
    "groups of channels": (
        lambda net, h: h.view(len(h), 2, 4, 12, 12).transpose(1, 2) + 1,
        [],
    ),
}


def outputs(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def layouts(plan: OptimizedModel) -> list[str]:
    steps = [step.problem for step in plan.explain(repeats=1).steps]
    return [
        step
        for step in steps
        if "reshape" in step or "flatten" in step or step == "to channels first"
    ]


@torch.no_grad()
@pytest.mark.parametrize(("function", "steps"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("batch", [1, 3])
def test_values_and_steps(
    function: Callable[[Any, Tensor], Any], steps: list[str], batch: int
) -> None:
    model, x = Net(function).eval(), X[:batch]
    plan = bt.optimize(model, x)
    assert layouts(plan) == steps
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    for one in (plan, bt.load(file)):
        first = outputs(one(x))
        kept = [value.clone() for value in first]
        for given in (-x, x.flip(2)):
            for got, right in zip(outputs(one(given)), outputs(model(given)), strict=True):
                torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-5)
                assert got.stride() == right.stride()
        assert all(map(torch.equal, first, kept)), "a result lies in the arena"


@torch.no_grad()
def test_a_file_that_reshapes_channels_last_itself() -> None:
    """As plans did before they copied to channels first: PyTorch copies."""
    model = Net(KINDS["of many pixels"][0]).eval()
    plan = bt.optimize(model, X)
    program = next(reversed(plan._programs.values()))[2]
    (node,) = [node for node in program.nodes if node.meta.get("operation") == ToChannelsFirst()]
    node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]  # it is a node
    program.graph.erase_node(node)
    program.nodes.remove(node)
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    loaded = bt.load(file)
    torch.testing.assert_close(loaded(X), model(X), rtol=1e-4, atol=1e-5)
    assert layouts(loaded) == ["aten.reshape.default"]


@torch.no_grad()
@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d((2, 3), (1, 2)),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        nn.AvgPool2d(3, 2, 1),
    ],
    ids=str,
)
def test_poolings(pool: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), pool).eval()
    plan = bt.optimize(model, X)
    for given in (X, -X):
        torch.testing.assert_close(plan(given), model(given), rtol=1e-4, atol=1e-5)


def test_memory_of_another_shape_than_a_pooling_yields_is_refused() -> None:
    x, out = (
        torch.empty(shape).to(memory_format=torch.channels_last)
        for shape in ((2, 3, 8, 8), (2, 3, 4, 3))
    )
    with pytest.raises(TorchError, match=r"\(2, 4, 4, 3\) of .*; the plan keeps \(2, 4, 3, 3\)"):
        pooling_runner(Window("max", (2, 2), (2, 2), (0, 0), True), x, out)


def test_a_file_that_copies_another_shape_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are given addresses: what a file says of them must fit."""
    plan = bt.optimize(Net(KINDS["of many pixels"][0]).eval(), X)
    program = next(reversed(plan._programs.values()))[2]
    (node,) = [node for node in program.nodes if node.meta.get("operation") == ToChannelsFirst()]
    monkeypatch.setitem(node.meta, "val", torch.empty(2, 8, 12, 24, device="meta"))
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    with pytest.raises(TorchError, match="columns"):
        bt.load(file)


class Expanded(nn.Module):
    """Returns a value whose elements lie at the same place, from the arena and from an operator."""

    def __init__(self, ends: bool) -> None:
        super().__init__()
        self.linear, self.ends = nn.Linear(8, 8), ends

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return (y.unsqueeze(1) if self.ends else torch.cumsum(y, 1).unsqueeze(0)).expand(5, 3, 8)


@pytest.mark.parametrize("ends", [True, False])
def test_an_expanded_output_has_the_strides_of_the_models(ends: bool) -> None:
    model, x = Expanded(ends).eval(), torch.randn(5 if ends else 3, 8)
    plan = bt.optimize(model, x)
    with torch.no_grad():
        right = model(x)
    found = plan(x)
    assert found.stride() == right.stride()
    torch.testing.assert_close(found, right)
    plan(2 * x)
    torch.testing.assert_close(found, right)  # it does not lie in the arena


class Copied(nn.Module):
    """Returns copies of its input and of a weight, beside a result."""

    def __init__(self, copy: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.copy = nn.Linear(8, 8), copy

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.layer(x), self.copy(x), self.copy(self.layer.bias)


@pytest.mark.parametrize(
    "copy",
    [
        torch.clone,
        lambda x: x.to(torch.float32, copy=True),
        lambda x: x.clone().detach().reshape(-1),
        lambda x: x.view(-1).clone(),
    ],
)
def test_a_copy_that_a_model_returns_has_memory_of_its_own(
    copy: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    model, x = Copied(copy).eval(), torch.randn(4, 8)
    plan = bt.optimize(model, x, tune=False)
    plan.save(tmp_path / "copied.plan")
    for one in (plan, bt.load(tmp_path / "copied.plan")):
        before = x.clone()
        with torch.no_grad():
            result, copied, bias = one(x)
            expected = result.clone()
            assert torch.equal(copied, copy(x))
            copied.fill_(7.0)
            bias.fill_(7.0)
            assert torch.equal(x, before)
            # Calls may try several products. A bias of 7 would be seen.
            assert (one(x)[0] - expected).abs().max() < 1.0
