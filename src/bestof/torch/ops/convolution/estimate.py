"""Estimates the cost of an alternative before its first call, from the sizes of a problem only.

The unit is the time of one addition or multiplication at the rate of a good kernel: 200 GFLOP/s on
two cores with AVX-512. So one table serves every machine whose memory bandwidth is in proportion to
its arithmetic. The factors were fitted to the times of all alternatives on some sixty convolutions.
Factors for moving memory are low, because other machines may be faster at that. MARGIN allows for
the rest.

The file of an alternative contains its estimate. This file contains what the estimates share, the
estimates of the native algorithms, and the margins beyond which an alternative is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, sqrt

from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.dtypes import width_of

Estimate = Callable[[ConvProblem], float]

MARGIN = 2.25
"""An alternative is left out if its estimate is above MARGIN times the cheapest one. No alternative
that was ever fastest came to more. A round of trials on VGG16's layers costs 3 times their settled
time with this margin, and 21 times without."""

WINOGRAD_MARGIN = 1.25
"""The margin of all other algorithms where Winograd wins (`Catalogue.winograd_wins`). The estimates
understate Winograd: on VGG16's layers it was 1.1 to 1.7 times further ahead of every algorithm but
PyTorch's own kernel, which is always tried. This margin halves what trials cost."""

WINOGRAD_CHANNELS = 32
"""The fewest filters and channels, two vectors, from which Winograd's estimates are trusted.
F(4) has won every such layer of VGG16 and ResNet34."""

SHARING_MARGIN = 1.5
"""The margin of the group that shares a lowered matrix. Both sides contain the same products."""

JOINT_MARGIN = 1.3
"""A layer is also judged as a whole if PyTorch's own kernels are estimated within JOINT_MARGIN
times the cheapest passes. Beyond it, as on VGG16's layers, that trial would be wasted."""

SMALL = 10**8
"""Half a millisecond, as operations. Below it a hopeless trial costs too little to be left out."""

CONVERSION = 40.0
"""The cost of a byte of an operand that is converted between the layouts, either way."""
MATRIX = 90.0
"""The cost of a byte of a fresh lowered matrix, page faults included: 1.3 GB/s were measured."""
AGAIN = 25.0
"""The cost of a byte of weights that is read again for every image: 7 GB/s."""

_TOUCH = 40.0  # a byte of an operand that is read, or written to new pages: 5 GB/s
_CAST = 5.0  # a float32 byte converted from or to bfloat16 within channels last: 43 GB/s
_CAST_CONVERSION = 20.0  # the same with a change of layout: 10 GB/s
_VECTOR = 16  # with fewer channels than a vector has lanes, the other lanes are idle


def dense(problem: ConvProblem) -> float:
    """Return the operations of a pass, including those on padding, which kernels compute too."""
    n, k, p, q = problem.output_shape
    _, c, r, s = problem.weight_shape
    return 2.0 * n * k * p * q * c * r * s


def operand_bytes(problem: ConvProblem) -> float:
    """Return the bytes of the input and the output."""
    n, c, h, w = problem.input_shape
    _, k, p, q = problem.output_shape
    return _width(problem) * n * (c * h * w + k * p * q)


def weight_bytes(problem: ConvProblem) -> float:
    k, c, r, s = problem.weight_shape
    return _width(problem) * k * c * r * s


def touched(problem: ConvProblem) -> float:
    """Return the cost of reading and writing the operands once."""
    return _TOUCH * operand_bytes(problem)


def converted(problem: ConvProblem) -> float:
    """Return the cost of channels-last copies of the operands; 0 if they are in channels last."""
    return 0.0 if problem.channels_last else CONVERSION * operand_bytes(problem)


def direct(problem: ConvProblem) -> float:
    """Return the cost of a kernel that computes every product, with vectors along the filters."""
    k = problem.weight_shape[0] // problem.groups
    return 1.3 * dense(problem) * _lanes(k) + touched(problem)


def direct_input_gradient(problem: ConvProblem) -> float:
    """Return the same with vectors along the channels. With 3 channels, 17 GFLOP/s were
    measured."""
    return 1.3 * dense(problem) * _lanes(problem.weight_shape[1]) + touched(problem)


def in_channels_last(problem: ConvProblem) -> float:
    """Return the cost of `direct` between conversions to channels last."""
    return direct(problem) + converted(problem)


def input_gradient_in_channels_last(problem: ConvProblem) -> float:
    """Return the cost of `direct_input_gradient` between conversions to channels last."""
    return direct_input_gradient(problem) + converted(problem)


def outputs_by_taps(problem: ConvProblem) -> float:
    """Return the root of the ratio of outputs to kernel taps, which swaps exchange."""
    (p, q), (_, _, r, s) = problem.output_size, problem.weight_shape
    return sqrt(p * q / (r * s))


def native_weight_gradient(inside: Estimate) -> Estimate:
    """Return the estimate of a native weight gradient, whose vectors lie along the channels.

    On 3 channels convgemm took 5 to 9 times as long as PyTorch's own kernel, F(2) 5 times. Groups
    keep the estimate of the forward pass.
    """

    def estimate(problem: ConvProblem) -> float:
        channels = problem.weight_shape[1]
        is_narrow = problem.groups == 1 and channels < _VECTOR
        return inside(problem) * (_lanes(channels) if is_narrow else 1.0)

    return estimate


def in_float32(inside: Estimate) -> Estimate:
    """Return the estimate of a problem of 16 bits by a float32 kernel: operands are converted.

    PyTorch's own bfloat16 kernels are estimated as in float32 beside it. They take half of that
    with instructions for bfloat16, and many times as much without, so this errs towards a trial.
    """

    def estimate(problem: ConvProblem) -> float:
        wide = problem._replace(dtype="float32", input_layout="channels_last")
        cast = _CAST if problem.channels_last else _CAST_CONVERSION
        return inside(wide) + cast * operand_bytes(wide)

    return estimate


def winograd(size: int) -> Estimate:
    """Return the estimate of F(size, 3): its products, and transforms that touch every tile twice.

    The last tile of a row or column has only as many frequencies as its results need. The weights
    are transformed at each call unless they are frozen.
    """

    def along(results: int) -> int:
        return results + 2 * ceil(results / size)

    def estimate(problem: ConvProblem) -> float:
        n, k, p, q = problem.output_shape
        c = problem.weight_shape[1]
        elements = n * along(p) * along(q)
        products = 3.4 * elements * c * k * _lanes(k)
        transforms = 4 * 9.0 * elements * (c + k) + _weights(problem, (size + 2) ** 2)
        return products + transforms + touched(problem) + converted(problem)

    return estimate


def winograd_strided(problem: ConvProblem) -> float:
    """Return the cost of F(3, 2) on the four images that a 3x3 kernel of stride 2 reads.

    A tile takes 49 products.
    """
    n, k, p, q = problem.output_shape
    c = problem.weight_shape[1]
    tiles = n * ceil(p / 3) * ceil(q / 3)
    products = 3.4 * 49 * tiles * c * k * _lanes(k)
    transforms = 4 * 9.0 * tiles * (49 * c + 16 * k) + _weights(problem, 49)
    return products + transforms + touched(problem) + converted(problem)


def winograd_strided7(problem: ConvProblem) -> float:
    """Return the cost of F(3, 4) along the columns of 7x7 with stride 2.

    Three results take 77 products in place of 147, at 0.87 of the rate.
    """
    n, k, p, q = problem.output_shape
    c = problem.weight_shape[1]
    products = 2.3 * 77 * n * ceil(p / 3) * q * c * k * _lanes(k)
    return products + touched(problem) + converted(problem)


def _weights(problem: ConvProblem, frequencies: int) -> float:
    """Return the cost of transforming the weights; 0 if they are kept from call to call."""
    k, c, _, _ = problem.weight_shape
    return 0.0 if problem.frozen else 4 * 10.0 * frequencies * c * k


def _width(problem: ConvProblem) -> int:
    return width_of(problem.dtype)


def _lanes(channels: int) -> float:
    """Return the number of lanes in use for each lane that is needed."""
    return ceil(channels / _VECTOR) * _VECTOR / channels
