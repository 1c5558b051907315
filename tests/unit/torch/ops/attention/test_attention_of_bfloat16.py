"""Attention of bfloat16 and its gradients are chosen for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_case import (
    NAMES,
    ON,
    OneEach,
    Order,
    attend,
    backward_override,
    decisions,
    mask_of,
    operands,
    override,
    problems,
)
from torch import Tensor

import bestof.torch as integration
from bestof.selection import use_policy

UNIT = torch.finfo(torch.bfloat16).eps / 2
KINDS = ["none", "causal", "added", "boolean", "keys", "float32"]


def halves(**sizes: int) -> tuple[Tensor, ...]:
    return tuple(x.bfloat16() for x in operands(**sizes))


def options_of(kind: str) -> dict[str, Any]:
    mask = mask_of("added" if kind == "float32" else kind)
    if kind == "added" and mask is not None:
        mask = mask.bfloat16()
    return {"attn_mask": mask, "is_causal": kind == "causal"}


def in_float64(given: tuple[Tensor, ...], options: dict[str, Any]) -> Tensor:
    mask = options["attn_mask"]
    if mask is not None and mask.is_floating_point():
        options = options | {"attn_mask": mask.double()}
    return attend(*(x.double() for x in given), **options)


def hold(got: Tensor, expected: Tensor, wide: Tensor, values: Tensor) -> None:
    """A weight may be rounded, and the result is: 2 UNIT of the largest value, and float32's."""
    assert got.stride() == expected.stride()
    assert got.dtype is torch.bfloat16
    bound = 2.1 * UNIT * values.abs().max().double()
    assert not ((got.double() - wide).abs() > bound).any()
    assert torch.isfinite(got).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_settled_call_does_not_enter_python(name: str, kind: str) -> None:
    given, options = halves(), options_of(kind)
    expected, wide = attend(*given, **options), in_float64(given, options)
    use_policy(Order(name))
    integration.enable(ON)
    for _ in range(4):
        hold(attend(*given, **options), expected, wide, given[2])
    assert [one.decision for one in problems()] == [name]
    shim = override().shim
    assert shim is not None
    asked = shim.asked
    for _ in range(8):
        hold(attend(*given, **options), expected, wide, given[2])
    assert shim.asked == asked
    attend(*(x.float() for x in given), is_causal=kind == "causal")
    assert shim.asked == asked + 1  # float32 is another problem


@pytest.mark.parametrize("queries", [1, 4, 5])
def test_heads_that_share_keys(queries: int) -> None:
    given = halves(shared=2, queries=queries)
    wide = attend(*(x.double() for x in given), enable_gqa=True, scale=0.3)
    expected = attend(*given, enable_gqa=True, scale=0.3)
    use_policy(Order("native"))
    integration.enable(ON)
    for _ in range(4):
        hold(attend(*given, enable_gqa=True, scale=0.3), expected, wide, given[2])
    assert [one.decision for one in problems()] == ["native"]


@pytest.mark.parametrize("backward", NAMES)
@pytest.mark.parametrize("forward", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind: str, forward: str, backward: str) -> None:
    """Some ten roundings, each of UNIT of a number. Settled calls do not enter Python."""
    given, options = halves(queries=33 if kind == "causal" else 20), options_of(kind)
    leaves = [x.detach().requires_grad_() for x in given]
    wide = [x.double().detach().requires_grad_() for x in given]
    upstream = torch.randn(given[0].shape, generator=torch.Generator().manual_seed(5)).bfloat16()
    exact = torch.autograd.grad(in_float64(tuple(wide), options), wide, upstream.double())
    own = torch.autograd.grad(attend(*leaves, **options), leaves, upstream)
    use_policy(OneEach(forward, backward))
    integration.enable(ON)
    for _ in range(6):
        found = torch.autograd.grad(attend(*leaves, **options), leaves, upstream)
        for got, right, theirs in zip(found, exact, own, strict=True):
            assert got.dtype is torch.bfloat16
            assert got.stride() == theirs.stride()
            error = torch.linalg.vector_norm(got.double() - right)
            assert error <= 10 * UNIT * torch.linalg.vector_norm(right)
    shim = backward_override().shim
    assert shim is not None
    asked = shim.asked
    torch.autograd.grad(attend(*leaves, **options), leaves, upstream)
    assert shim.asked == asked
    assert decisions() == [forward, backward]
