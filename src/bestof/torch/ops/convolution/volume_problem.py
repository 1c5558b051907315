"""One 3-D convolution as a value, and the 2-D convolution of planes that computes a pass of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bestof.accuracy import DEFAULT_ACCURACY, Accuracy
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.recognition import (
    LARGEST,
    are_usual,
)
from bestof.torch.ops.guards import PLAIN, passes_through
from bestof.torch.ops.memory_format import layout_of

Triple = tuple[int, int, int]
_DTYPES = {torch.float32: "float32", torch.float64: "float64"}


class VolumeProblem(NamedTuple):
    """One pass of a 3-D convolution of dense volumes (N, C, D, H, W) in channels first.

    The weight is (K, C/g, T, R, S): T taps along the depth.
    """

    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    bias: bool
    stride: Triple
    padding: Triple
    dilation: Triple
    groups: int
    dtype: str
    threads: int
    accuracy: Accuracy = DEFAULT_ACCURACY

    @property
    def output_shape(self) -> tuple[int, ...]:
        """(N, K, planes, height, width); not positive if the kernel exceeds the padded volume."""
        axes = zip(
            self.input_shape[2:],
            self.weight_shape[2:],
            self.stride,
            self.padding,
            self.dilation,
            strict=True,
        )
        return (
            *(self.input_shape[0], self.weight_shape[0]),
            *((x + 2 * p - d * (w - 1) - 1) // s + 1 for x, w, s, p, d in axes),
        )

    @property
    def planes(self) -> ConvProblem:
        """The 2-D convolution of planes, each of which holds the channels of T planes.

        It computes the forward pass and the weight gradient.
        """
        (n, _, planes, _, _), (_, c, _, h, w) = self.output_shape, self.input_shape
        k, group, taps, r, s = self.weight_shape
        return ConvProblem(
            (n * planes, c * taps, h, w),
            (k, group * taps, r, s),
            self.bias,
            *(self.stride[1:], self.padding[1:], self.dilation[1:]),
            self.groups,
            self.dtype,
            *("channels_last", "channels_last", ""),
            self.threads,
            accuracy=self.accuracy,
        )

    @property
    def gradient_planes(self) -> ConvProblem:
        """The 2-D convolution with T times the filters, whose input gradient is that of this one.

        There is one only if the stride along the depth is 1.
        """
        n, c, d, h, w = self.input_shape
        k, group, taps, r, s = self.weight_shape
        return self.planes._replace(
            input_shape=(n * d, c, h, w),
            weight_shape=(k * taps, group, r, s),
            bias=False,
            grad_layout="channels_last",
        )

    def canonical(self) -> str:
        """Return the canonical text for the store, with everything that distinguishes problems."""
        return f"{self} threads={self.threads}"

    def __str__(self) -> str:
        words = ",".join(
            letter + "x".join(map(str, sizes))
            for letter, sizes in (
                ("i", self.input_shape[1:]),
                ("k", (self.weight_shape[0], *self.weight_shape[2:])),
                ("b", self.input_shape[:1]),
                ("s", self.stride),
                ("p", self.padding),
                ("d", self.dilation),
                ("g", (self.groups,)),
            )
        )
        others = (
            (self.dtype, self.dtype != "float32"),
            ("bias", self.bias),
            (self.accuracy, self.accuracy != DEFAULT_ACCURACY),
        )
        return " ".join([words, *(word for word, here in others if here)])


def volume_problem(
    accuracy: Accuracy,
    input: Tensor,
    weight: Tensor,
    bias: bool,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> VolumeProblem | None:
    """Return the problem of a 3-D convolution; None if PyTorch answers the call.

    bestof chooses for dense tensors of one dtype in channels first, on the CPU. A layer whose
    weight is in channels last is left to PyTorch.
    """
    if accuracy == "exact" or passes_through() or not (_is_volume(input) and _is_volume(weight)):
        return None
    x, w = tuple(input.shape), tuple(weight.shape)
    if weight.dtype is not input.dtype or not are_usual(
        x, w, (stride, padding, dilation, groups), axes=3
    ):
        return None
    if x[1] != w[1] * groups or w[0] % groups != 0:
        return None
    problem = VolumeProblem(
        *(x, w, bias, tuple(stride), tuple(padding), tuple(dilation)),  # type: ignore[arg-type]
        groups,
        _DTYPES[input.dtype],
        torch.get_num_threads(),
        accuracy,
    )
    if min(problem.output_shape) < 1 or problem.planes.largest_image > LARGEST:
        return None
    return problem


def is_gradient(problem: VolumeProblem, gradient: Tensor) -> bool:
    """Return whether a tensor is a gradient of the output of a convolution."""
    return (
        type(gradient) in PLAIN
        and gradient.layout is torch.strided
        and gradient.is_cpu
        and _DTYPES.get(gradient.dtype) == problem.dtype
        and tuple(gradient.shape) == problem.output_shape
    )


def _is_volume(tensor: Tensor) -> bool:
    return (
        type(tensor) in PLAIN
        and tensor.dtype in _DTYPES
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.dim() == 5
        and layout_of(tensor) == "channels_first"
    )
