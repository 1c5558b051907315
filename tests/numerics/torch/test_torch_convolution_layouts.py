"""Results look as PyTorch's own would, whatever the strides of the operands; operands stay as they
were."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch_convolution_oracle import call, operands, pytorch

from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.passes import PASSES
from bestof.torch.ops.convolution.problem import ConvProblem, parse_conv
from bestof.torch.ops.memory_format import layout_of


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Thousands of tiny calls: on a busy machine two threads spend 100 times as long waiting for
    each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def channels_first(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def channels_last(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, memory_format=torch.channels_last).copy_(
        tensor
    )


def sliced(tensor: Tensor) -> Tensor:
    n, c, h, w = tensor.shape
    around = torch.full((n, 2 * c, h, 3 * w), torch.nan, dtype=tensor.dtype)
    around[:, ::2, :, ::3] = tensor
    return around[:, ::2, :, ::3]


def sliced_channels_last(tensor: Tensor) -> Tensor:
    n, c, h, w = tensor.shape
    around = channels_last(torch.full((n, c + 3, h + 1, w), torch.nan, dtype=tensor.dtype))
    around[:, 1 : c + 1, 1:] = tensor
    return around[:, 1 : c + 1, 1:]


def expanded(tensor: Tensor) -> Tensor:
    return tensor[:1, :1].clone().expand(tensor.shape)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    layout.__name__: layout
    for layout in (channels_first, channels_last, sliced, sliced_channels_last, expanded)
}
GEOMETRIES = [
    "i4x8x7,k6x3x3,b2,p1",
    "i4x8x7,k6x3x2,b1,s2,d2",
    "i6x7x7,k4x3x3,b2,p2x1,g2",
    "i4x7x7,k4x3x3,b2,p1,g4",
    "i3x7x8,k1x3x3,b2",
    "i1x7x8,k5x3x3,b2",
    "i4x7x6,k6x1x1,b2",
    "i4x7x6,k6x1x1,b2,s2",
    "i4x7x6,k4x1x1,b1,g4",
    "i4x3x3,k6x3x3,b2",
    "i4x3x3,k1x3x3,b1",
]
ROWS = [
    pytest.param(
        text, catalogue, alternative, id=f"{catalogue.direction}-{alternative.name}-{text}"
    )
    for text in GEOMETRIES
    for catalogue in PASSES
    for alternative in catalogue.rows
]


@pytest.mark.long(every=10)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(("text", "catalogue", "alternative"), ROWS)
def test_results_look_like_pytorchs_and_operands_stay(
    text: str, catalogue: Conv2dPass, alternative: Pass, dtype: str
) -> None:
    plain = parse_conv(text)._replace(dtype=dtype, bias=True)
    compared = 0
    for image, weight, gradient in itertools.product(
        LAYOUTS, ("channels_first", "channels_last", "sliced"), LAYOUTS
    ):
        if gradient != "channels_first" and catalogue.direction == "forward":
            continue
        tensors = dict(operands(plain, "integers"))
        tensors["input"] = LAYOUTS[image](tensors["input"])
        tensors["weight"] = LAYOUTS[weight](tensors["weight"])
        tensors["grad_output"] = LAYOUTS[gradient](tensors["grad_output"])
        problem = ConvProblem.of(
            *(tensors["input"], tensors["weight"], True),
            *(plain.stride, plain.padding, plain.dilation, plain.groups),
            None if catalogue.direction == "forward" else tensors["grad_output"],
        )
        if not alternative.can_run(problem):
            continue
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        result = call(catalogue, alternative, tensors, problem)
        expected = pytorch(catalogue.direction, tensors, problem)
        assert result.dtype == expected.dtype
        assert result.shape == expected.shape
        # Where either is rounded to bfloat16: half a unit in the last place each, of exact
        # integers.
        rounded = dtype == "bfloat16" or (
            alternative.accuracy == "relaxed" and "bfloat16" in alternative.name
        )
        torch.testing.assert_close(result, expected, rtol=2**-7 if rounded else 0, atol=1e-3)
        context = f"input {image}, weight {weight}, gradient {gradient}"
        assert result.stride() == expected.stride(), context
        assert layout_of(result) == layout_of(expected), context
        assert all(torch.equal(tensors[name], before[name]) for name in tensors), context
        storages = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
        assert result.untyped_storage().data_ptr() not in storages, context
        compared += 1
    assert compared or not alternative.can_run(plain)
