"""What an alternative will cost, before it was ever called: enough to leave out those that cannot win.

The unit is the time of one addition or multiplication at the rate of a good kernel (200 GFLOP/s on two cores with
AVX-512), so that one table serves every machine whose memory keeps pace with its arithmetic alike. The factors were
fitted to every alternative's time on some sixty convolutions; they lie on the low side for what moves memory, which
the machine may do faster than the one of the fit, and MARGIN absorbs the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, sqrt

from bestof.torch.convolution.fft import spectra_elements
from bestof.torch.convolution.lowered import matrix_bytes
from bestof.torch.convolution.problem import ConvProblem

Estimate = Callable[[ConvProblem], float]

MARGIN = 2.25
"""How many times the cheapest estimate another one may be before its alternative is left out. Of all alternatives that
were ever fastest none came to more than that, and a round of trials on VGG16's layers costs 3 times their settled time
in place of 21."""

WINOGRAD_MARGIN = 1.25
"""The same for what multiplies everything, where one of Winograd's algorithms is the cheapest and there are at least
WINOGRAD_CHANNELS. The estimates are fair to it: on the layers of VGG16 it was 1.1 to 1.7 times further ahead than they
say of every algorithm but PyTorch as is, which is tried in any case. Trying them took half of what trials cost."""

WINOGRAD_CHANNELS = 32
"""Filters and channels at least: two vectors. F(4) has won every layer of VGG16 and ResNet34 from there on."""

SHARING_MARGIN = 1.5
"""The same for the group that shares a lowered matrix: both sides hold the same products, which cancel out."""

JOINT_MARGIN = 1.3
"""How many times the cheapest estimates of its three passes those of PyTorch as is may be, for a layer that is judged
as a whole as well. Beyond, as on VGG16's, the passes win by so much that it would be a trial wasted."""

SMALL = 10**8
"""A call of half a millisecond: below it a hopeless trial costs too little to be left out."""

_TOUCH = 40.0  # a byte of an operand that is read, or written into fresh pages: 5 GB/s
_CONVERSION = 40.0  # a byte of an operand that is converted between the layouts, there or back
_CAST = 5.0  # a float32 byte of an operand that is converted from or to bfloat16: 43 GB/s within channels last
_CAST_CONVERSION = 20.0  # the same where the layout changes with it: 10 GB/s
_AGAIN = 25.0  # a byte of the weights that is read again for every image: 7 GB/s
_SPECTRUM = 3500.0  # an element of a spectrum: 17 ns; 27 to 60 were measured
_VECTOR = 16  # channels fewer than a vector has lanes leave the rest of them idle


def _dense(problem: ConvProblem) -> float:
    """The operations of a pass, those on padding included, which kernels carry out as well."""
    n, k, p, q = problem.output_shape
    _, c, r, s = problem.weight_shape
    return 2.0 * n * k * p * q * c * r * s


def _width(problem: ConvProblem) -> int:
    return {"float64": 8, "bfloat16": 2}.get(problem.dtype, 4)


def _operand_bytes(problem: ConvProblem) -> float:
    n, c, h, w = problem.input_shape
    _, k, p, q = problem.output_shape
    return _width(problem) * n * (c * h * w + k * p * q)


def _weight_bytes(problem: ConvProblem) -> float:
    k, c, r, s = problem.weight_shape
    return _width(problem) * k * c * r * s


def _touched(problem: ConvProblem) -> float:
    return _TOUCH * _operand_bytes(problem)


def _lanes(channels: int) -> float:
    return ceil(channels / _VECTOR) * _VECTOR / channels


def _direct(problem: ConvProblem) -> float:
    """A kernel that goes through the sums one by one, vectors along the filters."""
    k = problem.weight_shape[0] // problem.groups
    return 1.3 * _dense(problem) * _lanes(k) + _touched(problem)


def _direct_input_gradient(problem: ConvProblem) -> float:
    """The same with vectors along the channels: 17 GFLOP/s were measured on 3 of them."""
    return 1.3 * _dense(problem) * _lanes(problem.weight_shape[1]) + _touched(problem)


def _converted(problem: ConvProblem) -> float:
    return 0.0 if problem.channels_last else _CONVERSION * _operand_bytes(problem)


def _outputs_by_taps(problem: ConvProblem) -> float:
    """How many outputs there are for each tap of the kernel: swaps make either into the other."""
    (p, q), (_, _, r, s) = problem.output_size, problem.weight_shape
    return sqrt(p * q / (r * s))


def as_is(problem: ConvProblem) -> float:
    """PyTorch's kernels, but for the gradient of the input."""
    return _direct(problem)


def as_is_input_gradient(problem: ConvProblem) -> float:
    """PyTorch's kernels for it."""
    return _direct_input_gradient(problem)


def channels_last(problem: ConvProblem) -> float:
    """PyTorch's kernels between conversions, but for the gradient of the input; and our direct ones."""
    return _direct(problem) + _converted(problem)


def channels_last_input_gradient(problem: ConvProblem) -> float:
    """The same for that."""
    return _direct_input_gradient(problem) + _converted(problem)


def native_weight_gradient(inside: Estimate) -> Estimate:
    """The same by our kernels, whose vectors lie along the channels there: on 3 of them convgemm took 5 to 9 times as
    is, F(2) 5 times. Groups are estimated as before."""

    def estimate(problem: ConvProblem) -> float:
        channels = problem.weight_shape[1]
        return inside(problem) * (
            _lanes(channels) if problem.groups == 1 and channels < _VECTOR else 1.0
        )

    return estimate


def in_float32(inside: Estimate) -> Estimate:
    """A bfloat16 problem by a float32 kernel in channels last: every operand is converted, there or back.

    PyTorch's own kernels are estimated as in float32 beside it. They take half of that on a processor with instructions
    for bfloat16, and many times as much on one without; so this errs on the side of a trial.
    """

    def estimate(problem: ConvProblem) -> float:
        wide = problem._replace(dtype="float32", input_layout="channels_last")
        cast = _CAST if problem.channels_last else _CAST_CONVERSION
        return inside(wide) + cast * _operand_bytes(wide)

    return estimate


def im2row(problem: ConvProblem) -> float:
    """A matrix product at full rate, and a fresh matrix, whose pages are faulted in: 1.3 GB/s were measured."""
    return _dense(problem) + 90.0 * matrix_bytes(problem) + _touched(problem) + _converted(problem)


def im2col(problem: ConvProblem) -> float:
    """As im2row, with elements gathered one by one: 0.8 GB/s; and a product for each image, which reads all weights:
    on 64 images of 512x2x2 that makes 17 to 34 times the best."""
    again = _AGAIN * problem.input_shape[0] * _weight_bytes(problem)
    there_and_back = _CONVERSION * _operand_bytes(problem) if problem.channels_last else 0.0
    return (
        _dense(problem) + 170.0 * matrix_bytes(problem) + again + there_and_back + _touched(problem)
    )


def shared_matrix(problem: ConvProblem) -> float:
    """The forward pass and the gradient of the weight by im2row, the matrix built once."""
    return 2 * im2row(problem) - 90.0 * matrix_bytes(problem)


def fft(problem: ConvProblem) -> float:
    """The transforms; the products of spectra are little beside them."""
    return _SPECTRUM * spectra_elements(problem) + _touched(problem)


def winograd(size: int) -> Estimate:
    """F(size, 3): its multiplications, of which the last tile of a row or column has as many as its results need, and
    transforms that write and read every tile."""

    def along(results: int) -> int:
        return results + 2 * ceil(results / size)

    def estimate(problem: ConvProblem) -> float:
        n, k, p, q = problem.output_shape
        c = problem.weight_shape[1]
        elements = n * along(p) * along(q)
        products = 3.4 * elements * c * k * _lanes(k)
        transforms = 4 * 9.0 * elements * (c + k) + 4 * 10.0 * (size + 2) ** 2 * c * k
        return products + transforms + _touched(problem) + _converted(problem)

    return estimate


def winograd_strided(problem: ConvProblem) -> float:
    """F(3, 2) of the four images that a 3x3 kernel of stride 2 sees: 49 products a tile, as `winograd` otherwise."""
    n, k, p, q = problem.output_shape
    c = problem.weight_shape[1]
    tiles = n * ceil(p / 3) * ceil(q / 3)
    products = 3.4 * 49 * tiles * c * k * _lanes(k)
    transforms = 4 * 9.0 * tiles * (49 * c + 16 * k) + 4 * 10.0 * 49 * c * k
    return products + transforms + _touched(problem) + _converted(problem)


def winograd_strided7(problem: ConvProblem) -> float:
    """F(3, 4) along the columns of 7x7 with stride 2: 77 products for three results, of 147, at 0.87 of the rate."""
    n, k, p, q = problem.output_shape
    c = problem.weight_shape[1]
    products = 2.3 * 77 * n * ceil(p / 3) * q * c * k * _lanes(k)
    return products + _touched(problem) + _converted(problem)


def forward_by_weight_gradient(problem: ConvProblem) -> float:
    """PyTorch's weight gradient for a kernel of the size of the output: 1.4 times as is on 2x2, 6 times on 32x32."""
    return _direct(problem) * (1.0 + 0.4 * min(_outputs_by_taps(problem), 10.0))


def forward_by_input_gradient(problem: ConvProblem) -> float:
    """PyTorch's input gradient: 0.9 to 3.8 times as is."""
    return 1.3 * _direct(problem)


def input_gradient_by_forward(problem: ConvProblem) -> float:
    """PyTorch's forward pass over a gradient with zeros in it: 0.7 to 1.4 times as is without strides."""
    return _direct_input_gradient(problem) * problem.stride[0] * problem.stride[1]


def weight_gradient_by_forward(problem: ConvProblem) -> float:
    """PyTorch's forward pass with a kernel of the size of the output: 0.4 times as is on 2x2, 2.4 times on 16x16."""
    return _direct(problem) * (0.4 + 0.2 * min(_outputs_by_taps(problem), 10.0))
