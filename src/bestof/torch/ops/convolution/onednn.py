"""The convolutions in channels last that oneDNN is known to compute, by its version.

oneDNN has kernels for channels last that PyTorch's default layout never reaches. Some of them write
outside their memory, or return garbage. So an alternative hands a convolution in channels last to
oneDNN only if it belongs to a family that is known to be right. The families are those of oneDNN
3.12, which PyTorch 2.13 contains. For any other version, only what no version is known to compute
wrongly is allowed: whole blocks of 16 channels and filters, without dilation. The faults of 3.12:

- An output row or column that reads padding alone ends the process: a kernel is called that was
  never made (github.com/uxlfoundation/oneDNN/issues/5942).
- The weight gradient of a 1x1 kernel with strides writes outside its workspace if the channels are
  fewer than a block, which is 8 with AVX2 and 16 with AVX-512 (issues/6035).
- bfloat16 weight gradients are infinite, NaN or end the process if the channels or filters are no
  whole blocks, with dilation, and for some groups (AVX-512). Without these, only pictures of up to
  4 channels are handed over.
- bfloat16 weight gradients of images no wider than the horizontal stride read memory that was never
  written.
- Weight gradients of large kernels are computed by reference code if the lowered matrix is large:
  110 times as slow as in PyTorch's own layout.

This file is asked for problems as they reach oneDNN: in the dtype and the shape of that call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain

import torch

from bestof.torch.ops.convolution.direction import Direction
from bestof.torch.ops.convolution.problem import ConvProblem, image_size
from bestof.torch.ops.dtypes import is_rounded
from bestof.torch.ops.onednn import is_known

Pair = tuple[int, int]

# The pass of the convolution whose input gradient a transposed one is.
_OF_TRANSPOSED: Mapping[Direction, Direction] = {
    "forward": "input gradient",
    "input gradient": "forward",
    "weight gradient": "weight gradient",
}

_BLOCK = 16
_PICTURE = 4  # the most channels of a picture
_JIT_KERNEL = 7
"""The largest kernel for whose weight gradient oneDNN surely has code of its own. Up to 13 that
depends on the processor, and there is none with dilation. The others are lowered."""
_LOWERED_LIMIT = 32
"""oneDNN lowers an image if the matrix takes at most so many times the memory of the operands."""


def serves(problem: ConvProblem, direction: Direction) -> bool:
    """Return whether one pass may be handed to oneDNN in channels last.

    It is then known to be right, and not computed by reference code. PyTorch has code of its own
    for float64, and for CUDA.
    """
    if problem.device or problem.dtype == "float64":
        return True
    return _serves(problem._replace(frozen=False, bias=False), direction, is_known())


def serves_operator(
    x: Sequence[int],
    weight: Sequence[int],
    dtype: str,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    output_padding: Pair | None = None,
    *,
    directions: Sequence[Direction] = ("forward",),
) -> bool:
    """Return whether passes of PyTorch's operator may be handed over, for operands of these shapes.

    output_padding: of a transposed convolution, which is computed as an input gradient; None if it
    is none.
    """
    is_transposed = output_padding is not None
    image = tuple(x)
    if output_padding is not None:
        size = image_size(x[2:], weight[2:], stride, padding, dilation, output_padding)
        image = (x[0], weight[1] * groups, *size)
    problem = ConvProblem(
        image,  # type: ignore[arg-type]  # four numbers
        tuple(weight),  # type: ignore[arg-type]
        *(False, stride, padding, dilation, groups, dtype),
        *("channels_last", "channels_last"),
        threads=torch.get_num_threads(),
    )
    return all(serves(problem, _OF_TRANSPOSED[one] if is_transposed else one) for one in directions)


def reads_images(problem: ConvProblem) -> bool:
    """Return whether every row and column of the output reads the image, not padding alone."""
    return all(
        _covers(outputs, kernel, stride, padding, dilation, size)
        for outputs, kernel, stride, padding, dilation, size in zip(
            problem.output_size,
            problem.weight_shape[2:],
            problem.stride,
            problem.padding,
            problem.dilation,
            problem.input_shape[2:],
            strict=True,
        )
    )


@lru_cache(maxsize=4096)
def _serves(problem: ConvProblem, direction: Direction, is_known: bool) -> bool:
    if problem.empty or not reads_images(problem):
        return False
    whole = _is_whole(problem)
    is_dilated = problem.dilation != (1, 1)
    skips = problem.weight_shape[2:] == (1, 1) and problem.stride != (1, 1)
    if not is_known and (not whole or is_dilated or skips):
        return False
    is_half = is_rounded(problem.dtype)
    if direction == "forward":
        return whole or not is_half or not (is_dilated or skips or problem.groups > 1)
    if direction == "input gradient":
        if not _is_read(problem) and not (skips and problem.padding == (0, 0)):
            return False
        return whole or not (skips or (is_half and (is_dilated or problem.groups > 1)))
    if is_half:
        is_wide = problem.input_shape[3] > problem.stride[1] or problem.weight_shape[3] == 1
        if not is_wide or not (whole or _reads_pictures(problem)):
            return False
    is_depthwise = problem.weight_shape[1] == 1 and problem.groups > 1
    if not whole and (skips or is_dilated or (problem.groups > 1 and not is_depthwise)):
        return False
    return not _is_reference(problem)


def _is_whole(problem: ConvProblem) -> bool:
    """Return whether the channels and the filters of a group are whole blocks.

    The channels of a depthwise convolution are those of all groups.
    """
    k, c = problem.weight_shape[:2]
    if c == 1 and problem.groups > 1:
        return k % _BLOCK == 0 and problem.groups % _BLOCK == 0
    return c % _BLOCK == 0 and (k // problem.groups) % _BLOCK == 0


def _reads_pictures(problem: ConvProblem) -> bool:
    """Return whether a convolution is like the first of a network, which every training runs."""
    k, c = problem.weight_shape[:2]
    return problem.groups == 1 and c <= _PICTURE and k % _BLOCK == 0


def _is_read(problem: ConvProblem) -> bool:
    """Return whether every row and column of the image is read by some output.

    The input gradient is a convolution of the gradient, whose outputs are those of the image.
    """
    return all(
        all(
            any(
                (at - dilation * tap) % stride == 0 and 0 <= (at - dilation * tap) // stride < many
                for tap in range(kernel)
            )
            for at in _ends(padding, size, dilation * (kernel - 1) + stride)
        )
        for many, kernel, stride, padding, dilation, size in zip(
            problem.output_size,
            problem.weight_shape[2:],
            problem.stride,
            problem.padding,
            problem.dilation,
            problem.input_shape[2:],
            strict=True,
        )
    )


def _ends(first: int, size: int, most: int) -> Iterable[int]:
    """Return the positions from `first` on that are near either end of an axis, `most` of each.

    Between them, each position is read by as many taps as that of the stride before it. A second of
    sound has 48,000 positions.
    """
    behind = first + size
    if size <= 2 * most:
        return range(first, behind)
    return chain(range(first, first + most), range(behind - most, behind))


def _covers(outputs: int, kernel: int, stride: int, padding: int, dilation: int, size: int) -> bool:
    """Return whether every output along an axis has a tap inside the image."""
    if dilation <= size:  # no window steps over the image: only the first and the last may miss it
        return padding <= dilation * (kernel - 1) and stride * (outputs - 1) - padding < size
    return all(
        any(0 <= stride * at + dilation * tap - padding < size for tap in range(kernel))
        for at in range(outputs)
    )


def _is_reference(problem: ConvProblem) -> bool:
    """Return whether a weight gradient may be computed by reference code.

    A kernel of 15x15 on one image of 32x64x64 then took 10.9 s on a core of a Zen 3, where
    PyTorch's own layout took 0.1 s. Each thread lowers an image.
    """
    (n, c, h, w), (k, group, r, s) = problem.input_shape, problem.weight_shape
    if max(r, s) <= _JIT_KERNEL and problem.dilation == (1, 1):
        return False
    p, q = problem.output_size
    lowered = group * r * s * p * q * problem.threads
    operands = n * c * h * w + n * k * p * q + k * group * r * s
    return lowered > _LOWERED_LIMIT * operands
