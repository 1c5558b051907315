"""Average pooling: every row gives PyTorch's bits, and the rest is PyTorch's own."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from test_max_pool2d import Order
from torch import Tensor
from torch.nn import functional

import bestof.torch as integration
from bestof.selection import use_policy
from bestof.torch.dispatch.override import Override
from bestof.torch.dispatch.overrides import operation_override
from bestof.torch.ops.pooling import image
from bestof.torch.ops.pooling.avg_pool2d import AvgPool2d, AvgPoolProblem, pooled_shape
from bestof.torch.ops.pooling.pooling import Pooling

GEOMETRIES: dict[str, dict[str, Any]] = {
    "2x2": {"kernel_size": 2},
    "3x3 s2 p1": {"kernel_size": 3, "stride": 2, "padding": 1},
    "inside": {"kernel_size": 3, "padding": 1, "count_include_pad": False},
    "overlapping": {"kernel_size": (3, 2), "stride": 1},
    "rounded up": {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    "divisor": {"kernel_size": 2, "divisor_override": 3},
    "one pixel": {"kernel_size": (23, 19)},
}


def images(dtype: torch.dtype = torch.float32) -> Tensor:
    """With infinities and NaN."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((2, 24, 23, 19), generator=generator).to(dtype)
    chosen = torch.rand(x.shape, generator=generator)
    x[chosen < 0.01] = torch.nan
    x[(chosen > 0.01) & (chosen < 0.02)] = -torch.inf
    return x


def override() -> Override:
    found = operation_override("average pooling")
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "LEAST_BYTES", 1)
    monkeypatch.setattr(Pooling, "least", 1)


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [row.name for row in AvgPool2d.rows])
def test_every_row_gives_the_same_bits(
    name: str, dtype: torch.dtype, geometry: dict[str, Any]
) -> None:
    x = images(dtype)
    expected = functional.avg_pool2d(x, **geometry)
    use_policy(Order(name))
    integration.enable()
    got = functional.avg_pool2d(x, **geometry)
    (problem,) = override().selector.report().problems
    applies = dtype is torch.float32 or name == "channels last"
    assert problem.decision == (name if applies else "as is")
    assert got.stride() == expected.stride()
    bits = torch.int64 if dtype is torch.float64 else torch.int32
    numbers = ~expected.isnan()
    assert torch.equal(got.isnan(), ~numbers)
    assert torch.equal(got.view(bits)[numbers], expected.view(bits)[numbers])


@pytest.mark.parametrize("name", [row.name for row in AvgPool2d.rows])
def test_gradients_and_inference_are_pytorchs(name: str) -> None:
    x = torch.randn(2, 8, 12, 12, generator=torch.Generator().manual_seed(1)).requires_grad_()
    (expected,) = torch.autograd.grad(functional.avg_pool2d(x, 2).square().sum(), x)
    use_policy(Order(name))
    integration.enable()
    (got,) = torch.autograd.grad(functional.avg_pool2d(x, 2).square().sum(), x)
    assert torch.equal(got, expected)
    with torch.inference_mode():
        pooled = functional.avg_pool2d(x.detach().clone(), 2)
    assert override().selector.settled_calls > 0
    integration.disable()
    assert torch.equal(pooled, functional.avg_pool2d(x.detach(), 2))


@pytest.mark.parametrize(
    "arguments",
    [(2, 2, 2), (30,), (2, 0), (0,), ((2, 2, 2),), (2, 2, 0, False, True, 0)],
)
def test_what_pytorch_refuses_it_goes_on_to_refuse(arguments: Any) -> None:
    with pytest.raises(RuntimeError) as own:
        functional.avg_pool2d(images(), *arguments)
    integration.enable()
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            functional.avg_pool2d(images(), *arguments)
        assert (type(caught.value), str(caught.value)) == (type(own.value), str(own.value))
    assert override().selector.report().problems == ()


def test_the_arguments_that_pytorch_accepts_are_valid() -> None:
    generator, accepted = random.Random(0), 0

    def some(*numbers: int) -> tuple[int, ...]:
        return tuple(generator.choice(numbers) for _ in range(generator.choice((1, 2, 2))))

    for _ in range(5000):
        height, width = (generator.choice((0, *range(1, 13))) for _ in "hw")
        problem = AvgPoolProblem(
            (generator.choice((1, 2)), generator.choice((1, 3)), height, width),
            some(0, 1, 2, 2, 3, 3, 4, 5, 5),
            generator.choice(((), some(0, 1, 1, 2, 2, 3, 4, 5))),
            some(-1, 0, 0, 0, 0, 1, 1, 1, 2, 3),
            generator.random() < 0.5,
            generator.random() < 0.5,
            None,
            "float32",
            1,
        )
        try:
            averages = torch.ops.aten.avg_pool2d(
                torch.empty(problem.shape, device="meta"), *problem[1:7]
            )
        except RuntimeError:
            assert not pooled_shape(problem), problem
        else:
            assert pooled_shape(problem), problem
            assert averages.numel() > 0
            accepted += 1
    assert 500 < accepted < 4500


def test_a_call_from_python_computes_its_shape_once_for_a_problem() -> None:
    def problem() -> AvgPoolProblem:
        window = (2, 2), (2, 2), (0, 0)
        return AvgPoolProblem((1, 8, 128, 128), *window, False, True, None, "float32", 1)

    assert pooled_shape(problem()) == (1, 8, 64, 64)
    assert pooled_shape(problem()) is pooled_shape(problem())
