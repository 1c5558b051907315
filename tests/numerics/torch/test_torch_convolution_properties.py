"""Random small problems: wherever an alternative says that it applies, it agrees with float64."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_convolution_oracle import call, operands, reference

from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.fft import forward as fft_forward
from bestof.torch.ops.convolution.passes import FORWARD, PASSES
from bestof.torch.ops.convolution.problem import ConvProblem


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Thousands of tiny calls: on a busy machine two threads spend 100 times as long waiting for
    each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@st.composite
def problems(draw: st.DrawFn) -> ConvProblem:
    """Any geometry of at most 11 x 11 pixels whose output has at least one."""
    axis = st.integers(1, 11)
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    pairs = {
        name: (draw(st.integers(low, high)), draw(st.integers(low, high)))
        for name, low, high in (
            ("kernel", 1, 5),
            ("stride", 1, 3),
            ("padding", 0, 4),
            ("dilation", 1, 3),
        )
    }
    needed = [
        max(1, pairs["dilation"][i] * (pairs["kernel"][i] - 1) + 1 - 2 * pairs["padding"][i])
        for i in range(2)
    ]
    channels = draw(st.integers(1, 5))
    return ConvProblem(
        (
            draw(st.integers(1, 4)),
            groups * channels,
            max(draw(axis), needed[0]),
            max(draw(axis), needed[1]),
        ),
        (groups * draw(st.integers(1, 5)), channels, *pairs["kernel"]),
        draw(st.booleans()),
        pairs["stride"],
        pairs["padding"],
        pairs["dilation"],
        groups,
        draw(st.sampled_from(("float32", "float64"))),
    )


@pytest.mark.parametrize("catalogue", PASSES, ids=lambda catalogue: catalogue.direction)
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(problem=problems())
def test_every_alternative_agrees_with_float64(catalogue: Conv2dPass, problem: ConvProblem) -> None:
    expected = reference(catalogue.direction, problem, "integers")
    tensors = operands(problem, "integers")
    for alternative in catalogue.applying(problem):
        result = call(catalogue, alternative, tensors, problem).double()
        if alternative.name != "fft" and "winograd" not in alternative.name:
            # Sums of small integers are exact in any order.
            assert torch.equal(result, expected), alternative.name
        else:
            # The promise is relative to a result in which nothing cancels: sqrt(terms) products of
            # rms 2.6 * 2.6.
            terms = max(problem.flops / 2 / expected.numel(), 1.0)
            scale = max(sqrt(terms) * 20 / 3, expected.square().mean().sqrt().item())
            error = (result - expected).abs().max().item()
            assert error <= catalogue.bound(alternative, problem).maximum * scale, alternative.name


@pytest.mark.parametrize("catalogue", PASSES[:2], ids=lambda catalogue: catalogue.direction)
@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(problem=problems())
def test_images_of_a_batch_do_not_touch_each_other(
    catalogue: Conv2dPass, problem: ConvProblem
) -> None:
    problem = problem._replace(input_shape=(3, *problem.input_shape[1:]))
    expected = reference(catalogue.direction, problem._replace(bias=False), "integers").float()
    tensors = dict(operands(problem._replace(bias=False), "integers"))
    for name in ("input", "grad_output"):
        tensors[name] = tensors[name].clone()
        tensors[name][1] = torch.nan
    for alternative in catalogue.applying(problem):
        result = call(catalogue, alternative, tensors, problem._replace(bias=False)).float()
        torch.testing.assert_close(result[[0, 2]], expected[[0, 2]], rtol=0, atol=1e-3)
        assert result[1].isnan().any() or not expected[1].any(), alternative.name


def test_impulses_return_the_turned_kernel_through_the_fft() -> None:
    """Nine impulses, because one alone stands out: PyTorch computes that image."""
    problem = ConvProblem((1, 1, 7, 7), (1, 1, 3, 3), padding=(1, 1))
    impulses = torch.zeros(problem.input_shape)
    impulses[0, 0, ::3, ::3] = 1
    weight = operands(problem, "integers")["weight"]
    output = fft_forward(None, problem, impulses, weight, None)  # type: ignore[arg-type]
    expected = weight[0, 0].flip(0, 1).repeat(3, 3)[1:-1, 1:-1]
    torch.testing.assert_close(output[0, 0], expected, rtol=0, atol=1e-5)
    assert FORWARD.rows[4].function is fft_forward
