"""A convolution to measure, in a form that every peer understands."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray

Array: TypeAlias = "NDArray[numpy.float32]"

PASSES = ("forward", "input gradient", "weight gradient")


@dataclass(frozen=True, slots=True)
class Case:
    """A convolution and one of its passes. Sizes are elements, padding is on both sides.

    `notation` names the layer, without the batch. `dtype` is float32, or bfloat16 if the sides that
    round to bfloat16 take part too. The forward pass has a bias and a ReLU and may pack its weights
    beforehand. The gradients have neither, and get the weights as training holds them.
    """

    notation: str
    batch: int
    channels: int
    height: int
    width: int
    filters: int
    kernel_height: int
    kernel_width: int
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    direction: str = "forward"
    dtype: str = "float32"

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Case:
        """Return the case that `dataclasses.asdict` wrote, also after a round trip through JSON."""
        pairs = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        return cls(**{**fields, **pairs})

    def of(self, direction: str, batch: int) -> Case:
        """Return the same layer with another pass and batch."""
        return replace(self, direction=direction, batch=batch)

    @property
    def output_size(self) -> tuple[int, int]:
        """The height and width of the output."""
        return (
            (self.height + 2 * self.padding[0] - self.dilation[0] * (self.kernel_height - 1) - 1)
            // self.stride[0]
            + 1,
            (self.width + 2 * self.padding[1] - self.dilation[1] * (self.kernel_width - 1) - 1)
            // self.stride[1]
            + 1,
        )

    @property
    def x_shape(self) -> tuple[int, int, int, int]:
        """The shape of the input, NHWC."""
        return self.batch, self.height, self.width, self.channels

    @property
    def w_shape(self) -> tuple[int, int, int, int]:
        """The shape of the weights, OHWI; I counts the input channels of one group."""
        return self.filters, self.kernel_height, self.kernel_width, self.channels // self.groups

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        """The shape of the output, NHWC."""
        return self.batch, *self.output_size, self.filters

    @property
    def flops(self) -> float:
        """The multiplications and additions of the direct algorithm, including those on padding.

        The number is the same for all sides, so that GFLOP/s compare times.
        """
        taps = self.kernel_height * self.kernel_width * (self.channels // self.groups)
        n, p, q, k = self.y_shape
        return 2.0 * n * p * q * k * taps

    @property
    def bytes(self) -> float:
        """The bytes that must at least be read and written: x, w and y once each, in float32."""
        return 4.0 * sum(math.prod(shape) for shape in (self.x_shape, self.w_shape, self.y_shape))

    def __str__(self) -> str:
        size = f"{self.height}" if self.height == self.width else f"{self.height}x{self.width}"
        text = f"{self.kernel_height}x{self.kernel_width} {self.channels}->{self.filters} @{size}"
        if self.stride != (1, 1):
            text += f" /{self.stride[0]}"
        if self.dilation != (1, 1):
            text += f" d{self.dilation[0]}"
        return text + (f" g{self.groups}" if self.groups > 1 else "")


@dataclass(frozen=True, slots=True)
class Operands:
    """The arrays of a case, C-contiguous: x and grad NHWC, w OHWI. Every peer draws the same
    values.
    """

    x: Array
    w: Array
    bias: Array
    grad: Array

    @classmethod
    def of(cls, case: Case) -> Operands:
        """Return images as after a ReLU, and weights and gradient around zero; results are near
        1.
        """
        draw = numpy.random.default_rng(0)
        taps = case.kernel_height * case.kernel_width * (case.channels // case.groups)
        shapes = case.x_shape, case.w_shape, (case.filters,), case.y_shape
        x, w, bias, grad = (
            draw.random(out=aligned(shape), dtype=numpy.float32) for shape in shapes
        )
        w -= 0.5
        bias -= 0.5
        grad -= 0.5
        w *= numpy.float32(3.0 / taps**0.5)
        return cls(x, w, bias, grad)


def aligned(shape: tuple[int, ...]) -> Array:
    """Return float32 memory that begins at a cache line, as PyTorch's does.

    With an offset of half a line, every vector of a kernel would touch two lines.
    """
    size = math.prod(shape)
    memory = numpy.empty(size + 16, numpy.float32)
    first = -memory.ctypes.data % 64 // 4
    return memory[first : first + size].reshape(shape)


def samples_of(result: Array) -> list[float]:
    """Return about 256 elements of a result (NHWC or OHWI). Peers are compared by them."""
    flat = result.reshape(-1)
    return [float(value) for value in flat[:: max(1, flat.size // 256) | 1]]
