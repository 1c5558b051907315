"""The swapping trick on every geometry, one-sided and negative pads included, exactly: sums of
small integers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch_convolution_oracle import ORIGINALS, integers

from bestof.torch.ops.convolution import (
    forward_by_input_gradient,
    forward_by_weight_gradient,
    input_gradient_by_forward,
    weight_gradient_by_forward,
)
from bestof.torch.ops.convolution.pads import Pads, pad
from bestof.torch.ops.convolution.swapped_operands import output_size


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Thousands of tiny calls: on a busy machine two threads spend 100 times as long waiting for
    each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


N, K, C = 2, 4, 6
VERTICAL = [(0, 0), (1, 0), (0, 3), (2, 1), (4, 4)]
STEPS = (((1, 1), (1, 1)), ((2, 3), (1, 2)), ((3, 1), (2, 1)))  # stride, dilation
GEOMETRIES = [
    pytest.param(
        (height, 9), kernel, (vertical, horizontal), stride, dilation, groups,
        id=f"h{height} k{kernel} p{vertical}{horizontal} s{stride} d{dilation} g{groups}",
    )
    for height, kernel, vertical, (stride, dilation), groups in itertools.product(
        (7, 10), ((1, 2), (3, 3), (4, 1)), VERTICAL, STEPS, (1, 2)
    )
    for horizontal in ((1, 2), (3, 0))
    if min(output_size((height, 9), kernel, (vertical, horizontal), stride, dilation)) > 0
]  # fmt: skip
geometries = pytest.mark.parametrize(
    ("image", "kernel", "pads", "stride", "dilation", "groups"), GEOMETRIES
)
Pair = tuple[int, int]


class Case:
    """Operands, and the exact results with the pads applied beforehand."""

    def __init__(
        self, image: Pair, kernel: Pair, pads: Pads, stride: Pair, dilation: Pair, groups: int
    ) -> None:
        generator = torch.Generator().manual_seed(7)
        geometry = (stride, (0, 0), dilation, False, (0, 0), groups)
        self.input = integers((N, C, *image), generator)
        self.weight = integers((K, C // groups, *kernel), generator)
        padded = pad(self.input, pads)
        self.output = torch.ops.aten.convolution(padded, self.weight, None, *geometry)
        self.grad_output = integers(tuple(self.output.shape), generator)
        grad_padded, self.grad_weight, _ = torch.ops.aten.convolution_backward(
            self.grad_output, padded, self.weight, None, *geometry, (True, True, False)
        )
        cut = tuple((-before, -after) for before, after in pads)
        self.grad_input = pad(grad_padded, cut)  # type: ignore[arg-type]


@pytest.mark.long(every=5)
@geometries
def test_forward_by_weight_gradient(
    image: Pair, kernel: Pair, pads: Pads, stride: Pair, dilation: Pair, groups: int
) -> None:
    case = Case(image, kernel, pads, stride, dilation, groups)
    result = forward_by_weight_gradient.convolve(
        ORIGINALS, case.input, case.weight, pads, stride, dilation, groups
    )
    assert torch.equal(result, case.output)


@geometries
def test_weight_gradient_by_forward(
    image: Pair, kernel: Pair, pads: Pads, stride: Pair, dilation: Pair, groups: int
) -> None:
    case = Case(image, kernel, pads, stride, dilation, groups)
    result = weight_gradient_by_forward.gradient(
        ORIGINALS, case.grad_output, case.input, kernel, pads, stride, dilation, groups
    )
    assert torch.equal(result, case.grad_weight)


@pytest.mark.long(every=5)
@geometries
@pytest.mark.parametrize("channels_last", [False, True])
def test_input_gradient_by_forward(
    image: Pair,
    kernel: Pair,
    pads: Pads,
    stride: Pair,
    dilation: Pair,
    groups: int,
    channels_last: bool,
) -> None:
    case = Case(image, kernel, pads, stride, dilation, groups)
    result = input_gradient_by_forward.gradient(
        ORIGINALS,
        case.grad_output,
        case.weight,
        image,
        pads,
        stride,
        dilation,
        groups,
        channels_last,
    )
    assert torch.equal(result, case.grad_input)


@pytest.mark.parametrize(
    ("image", "kernel", "pads", "dilation", "groups"),
    [
        pytest.param(
            image,
            kernel,
            pads,
            dilation,
            groups,
            id=f"{image} k{kernel} p{pads} d{dilation} g{groups}",
        )
        for image, kernel, dilation, groups in itertools.product(
            ((9, 8), (7, 12)), ((3, 3), (4, 2), (1, 3)), ((1, 1), (2, 1)), (1, 2)
        )
        for pads in (((0, 0), (0, 0)), ((1, 0), (0, 1)), ((0, 2), (1, 0)), ((2, 2), (2, 1)))
        if max(pads[0]) <= dilation[0] * (kernel[0] - 1)
        and max(pads[1]) <= dilation[1] * (kernel[1] - 1)
    ],
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_forward_by_input_gradient(
    image: Pair, kernel: Pair, pads: Pads, dilation: Pair, groups: int, channels_last: bool
) -> None:
    case = Case(image, kernel, pads, (1, 1), dilation, groups)
    result = forward_by_input_gradient.convolve(
        ORIGINALS, case.input, case.weight, pads, dilation, groups, channels_last
    )
    assert torch.equal(result, case.output)
