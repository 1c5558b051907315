"""The table of alternatives: one row an implementation, PyTorch's own kernels first.

One more alternative is one more file and one more row. The catalogues of the CPU and of CUDA are
made from these rows, and the tests enumerate the catalogues.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from bestof.kernels import Algorithm, algorithms
from bestof.torch.convolution import (
    as_is,
    channels_last,
    cudnn_benchmark,
    fft,
    forward_by_input_gradient,
    forward_by_weight_gradient,
    im2col,
    im2row,
    input_gradient_by_forward,
    native,
    other_dtype,
    weight_gradient_by_forward,
)
from bestof.torch.convolution.alternative import BFLOAT16_INSIDE, DIRECT, SPECTRAL, ErrorBound
from bestof.torch.convolution.estimate import (
    in_channels_last,
    in_float32,
    input_gradient_in_channels_last,
)
from bestof.torch.convolution.row import DIRECTIONS, Kind, Row, Way

NATIVE: tuple[Algorithm, ...] = tuple(row for row in algorithms().values() if row.eager)
"""The native algorithms that eager programs try. The native im2row is not among them: it is within
a few percent of convgemm, and PyTorch's product stands in the table."""

# The kernel that multiplies pairs of bfloat16: it takes such tensors, or rounds those of float32.
(_PAIRS,) = (
    name for name, row in algorithms().items() if "bfloat16" in row.dtypes and row.rounds == "both"
)

# The kernels that sum tensors of bfloat16 in float32.
_WIDENING = tuple(row.name for row in NATIVE if "bfloat16" in row.dtypes)

_BOTH: tuple[Kind, ...] = ("cpu", "cuda")


def _native(row: Algorithm, dtype: str = "float32") -> Row:
    """Return the row of a native algorithm for problems of float32, or of bfloat16.

    bfloat16 problems are computed between conversions. All levels of accuracy allow that: even the
    error of F(6) is far below that of rounding the result. A forward pass that takes bfloat16 has a
    row of its own.
    """
    plain = dtype == "float32"
    estimate = native.estimate if plain else native.estimate_in_float32

    def way(function: Callable[..., Tensor], direction: str) -> Way:
        return Way(
            function,
            native.supports(row.name, direction, dtype),
            estimate(row.name, direction),
            native.compiled_forward(row.name) if plain and direction == "forward" else None,
        )

    return Row(
        f"native {row.name}" if plain else f"float32 native {row.name}",
        None if not plain and dtype in row.dtypes else way(native.forward(row.name), "forward"),
        way(native.gradient(row.name, "backward_input"), "backward_input"),
        way(native.gradient(row.name, "backward_weight"), "backward_weight"),
        ErrorBound(row.error.rms, row.error.maximum),
        row.accuracy if plain else "float32",
        reach=row.reach,
    )


_in_bfloat16 = [other_dtype.supports("float32", "bfloat16", one) for one in DIRECTIONS]
_in_float32 = [other_dtype.supports("bfloat16", "float32", one) for one in DIRECTIONS]

ROWS = (
    Row(
        "as is",
        Way(as_is.forward, as_is.supports, as_is.estimate),
        Way(as_is.input_gradient, as_is.supports, as_is.estimate_input_gradient),
        Way(as_is.weight_gradient, as_is.supports, as_is.estimate),
        accuracy="exact",
        kinds=_BOTH,
    ),
    Row(
        "channels last",
        Way(channels_last.forward, channels_last.supports("forward"), channels_last.estimate),
        Way(
            channels_last.input_gradient,
            channels_last.supports("input gradient"),
            channels_last.estimate_input_gradient,
        ),
        Way(
            channels_last.weight_gradient,
            channels_last.supports("weight gradient"),
            channels_last.estimate,
        ),
        kinds=_BOTH,
    ),
    Row(
        "cudnn benchmark",
        Way(cudnn_benchmark.forward, cudnn_benchmark.supports),
        Way(cudnn_benchmark.input_gradient, cudnn_benchmark.supports),
        Way(cudnn_benchmark.weight_gradient, cudnn_benchmark.supports),
        kinds=("cuda",),
    ),
    Row(
        "im2row",
        Way(im2row.forward, im2row.supports, im2row.estimate),
        Way(im2row.input_gradient, im2row.supports, im2row.estimate),
        Way(im2row.weight_gradient, im2row.supports_weight_gradient, im2row.estimate),
    ),
    Row(
        "im2col",
        Way(im2col.forward, im2col.supports, im2col.estimate),
        Way(im2col.input_gradient, im2col.supports, im2col.estimate),
        Way(im2col.weight_gradient, im2col.supports, im2col.estimate),
        kinds=_BOTH,
    ),
    Row(
        "fft",
        Way(fft.forward, fft.supports, fft.estimate),
        Way(fft.input_gradient, fft.supports, fft.estimate),
        Way(fft.weight_gradient, fft.supports, fft.estimate),
        SPECTRAL,
        kinds=_BOTH,
        reach="image",
    ),
    Row(
        "swap: weight gradient",
        Way(
            forward_by_weight_gradient.forward,
            forward_by_weight_gradient.supports,
            forward_by_weight_gradient.estimate,
        ),
        None,
        None,
        kinds=_BOTH,
    ),
    Row(
        "swap: input gradient",
        Way(
            forward_by_input_gradient.forward,
            forward_by_input_gradient.supports,
            forward_by_input_gradient.estimate,
        ),
        None,
        None,
        kinds=_BOTH,
    ),
    Row(
        "swap: forward",
        None,
        Way(
            input_gradient_by_forward.input_gradient,
            input_gradient_by_forward.supports,
            input_gradient_by_forward.estimate,
        ),
        Way(
            weight_gradient_by_forward.weight_gradient,
            weight_gradient_by_forward.supports,
            weight_gradient_by_forward.estimate,
        ),
        kinds=_BOTH,
    ),
    *(_native(row) for row in NATIVE),
    Row(
        "bfloat16",
        Way(other_dtype.forward("bfloat16"), _in_bfloat16[0]),
        Way(other_dtype.input_gradient("bfloat16"), _in_bfloat16[1]),
        Way(other_dtype.weight_gradient("bfloat16"), _in_bfloat16[2]),
        BFLOAT16_INSIDE,
        "relaxed",
    ),
    Row(
        "float32",
        Way(other_dtype.forward("float32"), _in_float32[0], in_float32(in_channels_last)),
        Way(
            other_dtype.input_gradient("float32"),
            _in_float32[1],
            in_float32(input_gradient_in_channels_last),
        ),
        Way(other_dtype.weight_gradient("float32"), _in_float32[2], in_float32(in_channels_last)),
    ),
    *(_native(row, "bfloat16") for row in NATIVE),
    *(
        Row(
            label,
            Way(native.forward(name), native.supports(name, "forward", "bfloat16")),
            None,
            None,
            DIRECT,
        )
        for label, name in (
            ("native bfloat16", _PAIRS),
            *((f"native bfloat16 {name}", name) for name in _WIDENING),
        )
    ),
    Row(
        "bfloat16 native",
        Way(native.forward(_PAIRS), native.supports(_PAIRS, "forward")),
        None,
        None,
        BFLOAT16_INSIDE,
        "relaxed",
    ),
)
