"""The table of implementations of 2-D convolution, PyTorch's own kernels first.

One more implementation is one more file and one more entry. The operations of the passes, on the
CPU and on CUDA, take their rows from here.
"""

from __future__ import annotations

from dataclasses import replace

from bestof.torch.ops.convolution import (
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
from bestof.torch.ops.convolution.direction import DIRECTIONS, Direction, Pass, Passes
from bestof.torch.ops.dtypes import BFLOAT16, FLOAT16, Dtypes

IMPLEMENTATIONS: tuple[Passes, ...] = (
    as_is.ROWS,
    channels_last.ROWS,
    cudnn_benchmark.ROWS,
    im2row.ROWS,
    im2col.ROWS,
    fft.ROWS,
    (forward_by_weight_gradient.ROW, None, None),
    (forward_by_input_gradient.ROW, None, None),
    (None, input_gradient_by_forward.ROW, weight_gradient_by_forward.ROW),
    *native.IN_FLOAT32,
    other_dtype.IN_BFLOAT16,
    other_dtype.IN_FLOAT32,
    *native.BETWEEN_CONVERSIONS,
    *native.IN_BFLOAT16,
    native.BFLOAT16_INSIDE,
)


def rows_of(direction: Direction, device: str) -> tuple[Pass, ...]:
    """Return the rows of a pass on the devices with a dispatch key.

    Estimates and kernels without Python are for the processor only. On CUDA, a race drops at its
    second call what is far behind, and rows of bfloat16 compute float16 too.
    """
    place = DIRECTIONS.index(direction)
    rows = [row for passes in IMPLEMENTATIONS if (row := passes[place]) is not None]
    found = [row for row in rows if device in row.devices]
    if device == "CPU":
        return tuple(found)
    return tuple(
        replace(row, estimate=None, compiled=None, dtypes=_on_device(row.dtypes)) for row in found
    )


def _on_device(dtypes: tuple[Dtypes, ...] | None) -> tuple[Dtypes, ...] | None:
    if dtypes is None or BFLOAT16 not in dtypes or FLOAT16 in dtypes:
        return dtypes
    return (*dtypes, FLOAT16)
