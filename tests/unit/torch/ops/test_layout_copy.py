"""Copies of images into the other memory format."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import bestof
import bestof.torch as bt
from bestof.errors import BestofWarning
from bestof.torch.ops.examples import random
from bestof.torch.ops.layout import clone
from bestof.torch.ops.row import Row
from bestof.torch.ops.table import named

FIRST, LAST = torch.contiguous_format, torch.channels_last


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clone, "LEAST", 1)
    monkeypatch.setattr(clone.Clone, "least", 1)


def images() -> Tensor:
    x = random(2, 5, 6, 7)
    x[0, 0, 0, :3] = torch.tensor([torch.nan, torch.inf, -0.0])
    return x


def same(one: Tensor, other: Tensor) -> bool:
    bits = one.contiguous().view(torch.int32), other.contiguous().view(torch.int32)
    return one.stride() == other.stride() and torch.equal(*bits)


def met() -> dict[str, str | None]:
    return {one.problem: one.chosen for one in bt.summary().passes if one.name == "layout copy"}


@pytest.mark.parametrize("name", ["as is", "native"])
def test_both_directions_have_the_same_bits(name: str) -> None:
    x = images()
    last = x.contiguous(memory_format=LAST)
    bestof.use_policy(f"fixed:{name}")
    bt.enable()
    for _ in range(3):
        into_first, into_last = last.contiguous(), x.contiguous(memory_format=LAST)
    assert met() == {
        "2x5x6x7 into channels first threads=1": name,
        "2x5x6x7 into channels last threads=1": name,
    }
    bt.disable()
    assert same(into_first, x)
    assert same(into_last, last)


CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "the own format": lambda x: x.clone(),
    "dense already": lambda x: x.clone(memory_format=FIRST),
    "another type": lambda x: x.double().contiguous(memory_format=LAST),
    "with gaps": lambda x: x[..., ::2].contiguous(memory_format=LAST),
    "a transposition": lambda x: x.transpose(1, 2).contiguous(),
    "volumes": lambda x: x[None].contiguous(memory_format=torch.channels_last_3d),
    "negated": lambda x: torch._neg_view(x).contiguous(memory_format=LAST),
}


@pytest.mark.parametrize("name", CALLS)
def test_other_copies_are_pytorchs(name: str) -> None:
    x = images()
    own = CALLS[name](x)
    bestof.use_policy("fixed:native")
    bt.enable()
    for _ in range(3):
        found = CALLS[name](x)
    assert not met()
    assert found.stride() == own.stride()
    assert torch.equal(found.nan_to_num(), own.nan_to_num())


def test_gradients_pass_through() -> None:
    bestof.use_policy("fixed:native")
    bt.enable()
    x = random(2, 5, 6, 7).requires_grad_()
    slope = random(2, 5, 6, 7, seed=1)
    (x.contiguous(memory_format=LAST) * slope).sum().backward()
    assert torch.equal(x.grad, slope)
    assert "2x5x6x7 into channels last threads=1" in met()


def test_a_wrong_bit_is_found() -> None:
    def wrong(*given: object) -> Tensor:
        found = clone.native(*given)
        found[0, 0, 0, 2] = 0.0  # was -0
        return found

    operation = named("layout copy", "test")
    operation.rows = (operation.rows[0], Row("native", wrong, dtypes=operation.rows[1].dtypes))
    bestof.use_policy("fixed:native")
    bt.enable()
    x = images()
    with pytest.warns(BestofWarning, match="a number is another than in the images"):
        found = x.contiguous(memory_format=LAST)
    bt.disable()
    assert same(found, x.to(memory_format=LAST))


def test_a_trace_after_disable_finds_pytorchs_kernel() -> None:
    """PyTorch's dispatcher in Python has kept that the CPU has a kernel of its own."""
    clone_of = torch.ops.aten.clone.default
    x = random(3, 3)
    bt.enable()
    with torch._dispatch.python.enable_python_dispatcher():
        torch.clone(x)
    assert clone_of._dispatch_cache
    bt.disable()
    with torch._dispatch.python.enable_python_dispatcher():
        assert torch.equal(torch.clone(x), x)
