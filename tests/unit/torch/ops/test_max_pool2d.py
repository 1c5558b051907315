"""Maximum pooling: every alternative gives PyTorch's bits, and small images are passed through."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import bestof.torch as integration
from bestof.selection import Fixed, use_policy
from bestof.selection.policies.policy import Search
from bestof.torch.dispatch.override import Override
from bestof.torch.dispatch.overrides import operation_override
from bestof.torch.ops.pooling import image
from bestof.torch.ops.pooling.max_pool2d import MaxPoolProblem, pooled_shape
from bestof.torch.ops.pooling.pooling import Pooling

NAMES = ("as is", "channels last", "native transposition")
GEOMETRIES: dict[str, dict[str, Any]] = {
    "2x2": {"kernel_size": 2},
    "3x3 s2 p1": {"kernel_size": 3, "stride": 2, "padding": 1},
    "overlapping": {"kernel_size": (3, 2), "stride": 1},
    "rounded up": {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    "dilated": {"kernel_size": 2, "dilation": 2},
    "one pixel": {"kernel_size": (23, 19)},
}


class Order:
    def __init__(self, name: str) -> None:
        self._name = name

    def start(self, alternatives: Sequence[str]) -> Search:
        return Fixed(self._name if self._name in alternatives else alternatives[0]).start(
            alternatives
        )


def images(dtype: torch.dtype = torch.float32) -> Tensor:
    """With equal maxima, signed zeros, infinities and NaN."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (2, 24, 23, 19), generator=generator).to(dtype)
    chosen = torch.rand(x.shape, generator=generator)
    x[chosen < 0.1] = torch.nan
    x[(chosen > 0.1) & (chosen < 0.2)] = -torch.inf
    x[(chosen > 0.2) & (chosen < 0.25)] = -0.0
    x[0, :3] = -torch.inf
    return x


def override() -> Override:
    found = operation_override("max pooling")
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "LEAST_BYTES", 1)
    monkeypatch.setattr(Pooling, "least", 1)


def bits_of(values: torch.Tensor) -> torch.Tensor:
    """Return the bits of numbers, and of one not-a-number: PyTorch's kernels of bfloat16 differ."""
    if not values.is_floating_point():
        return values
    if values.dtype is torch.bfloat16:
        values = torch.where(values.isnan(), torch.nan, values)
    return values.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[values.element_size()])


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("name", NAMES)
def test_every_alternative_gives_the_same_bits(
    name: str, dtype: torch.dtype, geometry: dict[str, Any]
) -> None:
    x = images(dtype)
    expected = functional.max_pool2d_with_indices(x, **geometry)
    use_policy(Order(name))
    integration.enable()
    got = functional.max_pool2d_with_indices(x, **geometry)
    (problem,) = override().selector.report().problems
    assert problem.decision == (
        name if dtype is torch.float32 or name == "channels last" else "as is"
    )
    for one, right in zip(got, expected, strict=True):
        assert one.stride() == right.stride()
        assert torch.equal(*(bits_of(value) for value in (one, right)))


@pytest.mark.parametrize("name", NAMES)
def test_gradients_and_inference_are_pytorchs(name: str) -> None:
    x = torch.randn(2, 8, 12, 12, generator=torch.Generator().manual_seed(1)).requires_grad_()
    (expected,) = torch.autograd.grad(functional.max_pool2d(x, 2).square().sum(), x)
    use_policy(Order(name))
    integration.enable()
    (got,) = torch.autograd.grad(functional.max_pool2d(x, 2).square().sum(), x)
    assert torch.equal(got, expected)
    with torch.inference_mode():
        pooled = functional.max_pool2d(x.detach().clone(), 2)
    assert override().selector.settled_calls > 0
    integration.disable()
    assert torch.equal(pooled, functional.max_pool2d(x.detach(), 2))


def test_the_alternatives_are_raced_and_pytorch_is_put_back() -> None:
    x = images()
    plain = functional.max_pool2d(x, 2)
    integration.enable()
    for _ in range(40):
        torch.testing.assert_close(
            functional.max_pool2d(x, 2), plain, rtol=0, atol=0, equal_nan=True
        )
    selector = override().selector
    assert selector.report().problems[0].settled
    integration.disable()
    calls = selector.settled_calls
    functional.max_pool2d(x, 2)
    assert selector.settled_calls == calls


@pytest.mark.parametrize(
    "given",
    [
        images().contiguous(memory_format=torch.channels_last),
        images()[:, ::2],
        images()[0],
        torch.zeros(0, 3, 8, 8),
    ],
    ids=["channels last", "not dense", "one image", "empty batch"],
)
def test_the_rest_is_pytorchs_own(given: Tensor) -> None:
    expected = functional.max_pool2d(given, 2)
    integration.enable()
    got = functional.max_pool2d(given, 2)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
    assert got.stride() == expected.stride()
    with pytest.raises(RuntimeError):
        functional.max_pool2d(given, 2, padding=5)
    assert override().selector.report().problems == ()


@pytest.mark.parametrize("arguments", [(2, 2, 2), (30,), (2, 0), (0,), ((2, 2, 2),)])
def test_what_pytorch_refuses_it_goes_on_to_refuse(arguments: Any) -> None:
    with pytest.raises(RuntimeError) as own:
        functional.max_pool2d(images(), *arguments)
    integration.enable()
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            functional.max_pool2d(images(), *arguments)
        assert (type(caught.value), str(caught.value)) == (type(own.value), str(own.value))
    assert override().selector.report().problems == ()


def test_small_images_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    integration.enable()
    functional.max_pool2d(torch.zeros(1, 128, 31, 33), 2)
    assert override().selector.report().problems == ()
    functional.max_pool2d(torch.zeros(1, 128, 32, 32), 2)
    assert len(override().selector.report().problems) == 1


def test_it_can_be_left_out() -> None:
    integration.enable({"kernel": {"pooling": False}})
    functional.max_pool2d(images(), 2)
    assert override().selector.report().problems == ()
    integration.enable()
    functional.max_pool2d(images(), 2)
    assert len(override().selector.report().problems) == 1
    with integration.enabled({"kernel": {"pooling": False}}):
        functional.max_pool2d(images(), 3)
        assert len(override().selector.report().problems) == 1
    functional.max_pool2d(images(), 3)
    assert len(override().selector.report().problems) == 2


def random_problem(generator: random.Random) -> MaxPoolProblem:
    """Return a problem whose every number may be one that PyTorch refuses."""

    def some(*numbers: int) -> tuple[int, ...]:
        return tuple(generator.choice(numbers) for _ in range(generator.choice((1, 2, 2))))

    height, width = (generator.choice((0, *range(1, 13))) for _ in "hw")
    return MaxPoolProblem(
        (generator.choice((1, 2)), generator.choice((1, 3)), height, width),
        some(0, 1, 2, 2, 3, 3, 4, 5, 5),
        generator.choice(((), some(0, 1, 1, 2, 2, 3, 4, 5))),
        some(-1, 0, 0, 0, 0, 1, 1, 1, 2, 3),
        some(0, 1, 1, 1, 1, 1, 2, 2, 3),
        generator.random() < 0.5,
        "float32",
        1,
    )


def test_the_arguments_that_pytorch_accepts_are_valid() -> None:
    generator, accepted = random.Random(0), 0
    odd = [
        MaxPoolProblem((1, 1, 9, 9), *arguments, ceil_mode, "float32", 1)
        for ceil_mode in (True, False)
        for arguments in (
            ((), (), (0, 0), (1, 1)),
            ((2, 2, 2), (), (0, 0), (1, 1)),
            ((2, 2), (1, 1, 1), (0, 0), (1, 1)),
            ((2, 2), (), (), (1, 1)),
            ((2, 2), (), (0, 0), ()),
            ((9, 9), (10, 10), (4, 4), (1, 1)),
        )
    ]
    for problem in [*odd, *(random_problem(generator) for _ in range(5000))]:
        try:
            maxima, _ = torch.ops.aten.max_pool2d_with_indices(
                torch.empty(problem.shape, device="meta"), *problem[1:6]
            )
        except RuntimeError:
            assert not pooled_shape(problem), problem
        else:
            assert pooled_shape(problem), problem
            assert maxima.numel() > 0
            accepted += 1
    assert 500 < accepted < 4500
    absurd = MaxPoolProblem((1, 1, 9, 9), (2,), (2**40,), (0,), (1,), False, "float32", 1)
    assert not pooled_shape(absurd)  # PyTorch answers


def test_a_call_from_python_computes_its_shape_once_for_a_problem() -> None:
    def problem() -> MaxPoolProblem:
        window = (2, 2), (2, 2), (0, 0), (1, 1)
        return MaxPoolProblem((1, 8, 128, 128), *window, False, "float32", 1)

    assert pooled_shape(problem()) == (1, 8, 64, 64)
    assert pooled_shape(problem()) is pooled_shape(problem())
