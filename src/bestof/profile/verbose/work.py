"""Counts the work of a line exactly: floating-point operations, and bytes that must be moved.

A convolution multiplies only where its window meets the image, so taps on the padding do not count.
Each tensor counts once, read or written. If a problem exceeds the caches, kernels move more bytes
than this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod

from bestof.profile.verbose.descriptor import BYTES
from bestof.profile.verbose.line import Line
from bestof.profile.verbose.mkl import dtype_of

# Longer numbers are no sizes. They come from damaged lines, and Python refuses very long ones.
_NAMED = re.compile(r"([a-z]+)(\d{1,18})(?!\d)")
# No window has more taps on an axis.
_WIDEST = 1 << 17
# No call counts more: a damaged line does.
_MOST = 1 << 100
# The operands of a product, by oneDNN's names.
_SHAPES = re.compile(r"\d+(x\d+)+:\d+(x\d+)+")
_CONVOLUTIONS = ("convolution", "deconvolution")


def sizes_of(problem: str) -> dict[str, int]:
    """Parse a problem such as `mb2_ic8oc8_ih32oh30kh3sh1dh0ph0` into sizes by name."""
    return {name: int(value) for name, value in _NAMED.findall(problem)}


def taps(size: int, results: int, window: int, stride: int, dilation: int, pad: int) -> int:
    """Count the pairs of result and tap on one axis that meet the image.

    `dilation` is 0 for a dense window. Raises ValueError for a size that no convolution has, as in
    a damaged line.
    """
    if window > _WIDEST or stride < 1:
        raise ValueError(f"a window of {window} with stride {stride}")
    total = 0
    for tap in range(window):
        # A result at `place` reads the image at place * stride - before.
        before = pad - tap * (dilation + 1)
        first = max(0, -(-before // stride))
        last = min(results - 1, (size - 1 + before) // stride)
        total += max(0, last - first + 1)
    return total


def flops_of(line: Line) -> int:
    """Return the floating-point operations of a call.

    0 if the primitive only moves data, or if its sizes are unknown.
    """
    return _counted(_flops_of, line)


def bytes_of(line: Line) -> int:
    """Return the bytes of all tensors of a call, each once, or 0 if the line has no sizes."""
    return _counted(_bytes_of, line)


def _counted(count: Callable[[Line], int], line: Line) -> int:
    """Return a count, or 0 if a size is missing or damaged."""
    try:
        found = count(line)
    except (KeyError, ValueError, OverflowError, ZeroDivisionError):
        return 0
    return found if found < _MOST else 0


def _flops_of(line: Line) -> int:
    if line.primitive in _CONVOLUTIONS:
        # One line of bestof may cover both gradients. Each does as much work as the forward pass.
        passes = line.direction.count("+") + 1
        return passes * _convolution(sizes_of(line.problem), line.primitive == "deconvolution")
    count = _FLOPS.get(line.primitive)
    return 0 if count is None else count(line)


def _bytes_of(line: Line) -> int:
    if line.source == "mkl":
        width = BYTES.get(dtype_of(line.implementation), 4.0)
        if _SHAPES.fullmatch(line.problem):
            left, right = _matrices(line)
            return int(width * (prod(left) + prod(right) + prod(left[:-1]) * right[-1]))
        size = sizes_of(line.problem)
        if not {"m", "n", "k"} <= size.keys():
            return 0
        m, n, k = size["m"], size["n"], size["k"]
        return int((m * k + k * n + m * n) * width)
    elements = _elements(line)
    return int(
        sum(
            elements.get(one.role, 0) * BYTES.get(one.dtype, 0.0)
            for one in line.descriptors
            if not one.absent
        )
    )


def _convolution(size: Mapping[str, int], transposed: bool) -> int:
    pairs = 1
    for axis in "dhw":
        if f"i{axis}" not in size and f"o{axis}" not in size:
            continue
        inner, outer = size.get(f"i{axis}", 1), size.get(f"o{axis}", 1)
        if transposed:
            inner, outer = outer, inner
        window, stride = size.get(f"k{axis}", 1), size.get(f"s{axis}", 1)
        pairs *= taps(
            inner, outer, window, stride, size.get(f"d{axis}", 0), size.get(f"p{axis}", 0)
        )
    channels = size.get("ic", 0) * size.get("oc", 0) // size.get("g", 1)
    return 2 * size.get("mb", 1) * channels * pairs


def _matmul(line: Line) -> int:
    if line.source == "mkl" and not _SHAPES.fullmatch(line.problem):
        size = sizes_of(line.problem)
        return 2 * size["m"] * size["n"] * size["k"]
    left, right = _matrices(line)
    return 2 * prod(_broadcast(left[:-2], right[:-2])) * left[-2] * left[-1] * right[-1]


def _matrices(line: Line) -> tuple[list[int], list[int]]:
    """Return the shapes of `2x3x4:2x4x5`.

    Since 1.x, the shape of the result may follow, or the text may be `mb2k3n4`.
    """
    shapes = [_shape(text) for text in line.problem.split(":")[:2]]
    if len(shapes) < 2:
        raise ValueError(line.problem)
    return shapes[0], shapes[1]


def _broadcast(left: list[int], right: list[int]) -> list[int]:
    return [max(pair) for pair in zip(left, right, strict=True)]


def _shape(text: str) -> list[int]:
    return [int(one) for one in text.split("x")]


def _inner_product(line: Line) -> int:
    size = sizes_of(line.problem)
    image = prod(size.get(f"i{axis}", 1) for axis in "dhw")
    return 2 * size["mb"] * size["ic"] * size["oc"] * image


# The gates of each kind of recurrent cell. Each step takes as many products of the state and of the
# input.
_GATES = {"vanilla_rnn": 1, "vanilla_lstm": 4, "vanilla_gru": 3, "lbr_gru": 3}


def _rnn(line: Line) -> int:
    size = sizes_of(line.problem)
    gates = next((count for name, count in _GATES.items() if name in line.auxiliary), 1)
    directions = 2 if "bidirectional" in line.auxiliary else 1
    layers, steps, batch = size["l"], size["t"], size["mb"]
    state, source = size["dhc"] if "dhc" in size else size["dic"], size["slc"]
    inputs = layers * source if layers == 1 else source + (layers - 1) * state * directions
    recurrent = layers * (size.get("sic", state))
    return 2 * gates * directions * steps * batch * state * (inputs + recurrent)


_FLOPS: dict[str, Callable[[Line], int]] = {
    "matmul": _matmul,
    "inner_product": _inner_product,
    "rnn": _rnn,
}


def _elements(line: Line) -> dict[str, int]:
    """Return the number of elements of each tensor, by its role."""
    size = sizes_of(line.problem)
    if line.primitive in (*_CONVOLUTIONS, "inner_product"):
        return _convolution_elements(size, line.primitive == "inner_product")
    if line.primitive == "matmul":
        try:
            left, right = _matrices(line)
        except ValueError:
            return {}
        both = prod(_broadcast(left[:-2], right[:-2]))
        return {
            "src": prod(left),
            "wei": prod(right),
            "dst": both * left[-2] * right[-1],
            "bia": right[-1],
        }
    if re.fullmatch(r"\d+(x\d+)*", line.problem):
        count = prod(_shape(line.problem))
        return dict.fromkeys((one.role for one in line.descriptors), count)
    return {}


def _convolution_elements(size: Mapping[str, int], dense: bool) -> dict[str, int]:
    batch, inputs, outputs = size.get("mb", 1), size.get("ic", 0), size.get("oc", 0)
    image = prod(size.get(f"i{axis}", 1) for axis in "dhw")
    result = 1 if dense else prod(size.get(f"o{axis}", 1) for axis in "dhw")
    window = image if dense else prod(size.get(f"k{axis}", 1) for axis in "dhw")
    return {
        "src": batch * inputs * image,
        "wei": inputs * outputs * window // size.get("g", 1),
        "dst": batch * outputs * result,
        "bia": outputs,
    }
