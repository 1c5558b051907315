"""Gradients of poolings: every row gives PyTorch's bits, and the rest is PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_avg_pool2d import GEOMETRIES as AVERAGES
from test_max_pool2d import GEOMETRIES as MAXIMA
from test_max_pool2d import Order
from torch import Tensor
from torch.nn import functional

import bestof.torch as integration
from bestof.selection import use_policy
from bestof.torch.dispatch.overrides import operation_override
from bestof.torch.ops.pooling import image
from bestof.torch.ops.pooling.avg_pool2d_backward import AvgPool2dBackward
from bestof.torch.ops.pooling.max_pool2d_backward import MaxPool2dBackward
from bestof.torch.ops.pooling.pooling import Pooling

CASES = [
    pytest.param(
        operation, run, geometry, row, dtype, id=f"{operation.name}: {text}, {row}, {dtype}"
    )
    for operation, run, geometries in (
        (AvgPool2dBackward, functional.avg_pool2d, AVERAGES),
        (MaxPool2dBackward, functional.max_pool2d, MAXIMA),
    )
    for text, geometry in geometries.items()
    for row in (one.name for one in operation.rows)
    for dtype in (torch.float32, torch.float64)
]


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "LEAST_BYTES", 1)
    monkeypatch.setattr(Pooling, "least", 1)


def gradient_of(run: Callable[..., Tensor], x: Tensor, geometry: dict[str, Any]) -> Tensor:
    out = run(x, **geometry)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out.dtype)
    return torch.autograd.grad((out * weights).sum(), x)[0]


@pytest.mark.parametrize(("operation", "run", "geometry", "row", "dtype"), CASES)
def test_every_row_gives_the_same_bits(
    operation: Any, run: Any, geometry: dict[str, Any], row: str, dtype: torch.dtype
) -> None:
    x = torch.randn((2, 24, 23, 19), generator=torch.Generator().manual_seed(1)).to(dtype)
    x.requires_grad_()
    expected = gradient_of(run, x, geometry)
    use_policy(Order(row))
    integration.enable()
    got = gradient_of(run, x, geometry)
    override = operation_override(operation.name)
    assert override is not None
    (problem,) = override.selector.report().problems
    applies = dtype is torch.float32 or row != "native transposition"
    assert problem.decision == (row if applies else "as is")
    assert torch.equal(got, expected)
    assert got.stride() == expected.stride()


@pytest.mark.parametrize("run", [functional.avg_pool2d, functional.max_pool2d])
@pytest.mark.parametrize("row", ["channels last", "native transposition", "scatter"])
def test_odd_gradients_are_pytorchs_own(run: Any, row: str) -> None:
    x = torch.randn(2, 8, 12, 12, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def gradients() -> list[Tensor]:
        out = run(x, 2)
        last = out.detach().contiguous(memory_format=torch.channels_last)
        odd = [torch.ones(()).expand(out.shape), last, out.detach()[:, :, ::1]]
        return [torch.autograd.grad(out, x, one, retain_graph=True)[0] for one in odd]

    expected = gradients()
    use_policy(Order(row))
    integration.enable()
    for got, right in zip(gradients(), expected, strict=True):
        assert torch.equal(got, right)
        assert got.stride() == right.stride()


@pytest.mark.parametrize("run", [functional.avg_pool2d, functional.max_pool2d])
def test_second_gradients(run: Any) -> None:
    x = torch.randn(2, 8, 12, 12, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def second() -> Tensor:
        (first,) = torch.autograd.grad(run(x, 2).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    expected = second()
    use_policy(Order("channels last"))
    integration.enable()
    assert torch.equal(second(), expected)
