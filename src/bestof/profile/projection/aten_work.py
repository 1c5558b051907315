"""Counts the floating-point operations of PyTorch's products and convolutions exactly.

Taps on the padding of a convolution do not count. Other operations count as 0, because they move
more than they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from bestof.profile.verbose.work import taps

Shape = Sequence[int]


def flops_of_call(name: str, shapes: Sequence[Any], values: Sequence[Any]) -> int:
    """Return the operations of a call by the shapes and the values of its arguments.

    A number, a list of numbers or a truth value has a value, and other arguments have None. Return
    0 for an operation of another kind, and if a size is unknown.
    """
    count = _COUNTS.get(name.removeprefix("aten::"))
    if count is None:
        return 0
    try:
        return count(shapes, values)
    except (IndexError, TypeError, ValueError):
        return 0  # an argument was not recorded, such as padding="same"


def _product(first: int) -> Callable[[Sequence[Any], Sequence[Any]], int]:
    """Return the count of a product whose factors are the arguments from `first` on."""

    def count(shapes: Sequence[Any], _values: Sequence[Any]) -> int:
        return _matmul(shapes[first], shapes[first + 1])

    return count


def _matmul(left: Shape, right: Shape) -> int:
    left = [1, *left] if len(left) == 1 else left
    right = [*right, 1] if len(right) == 1 else right
    if left[-1] != right[-2]:
        raise ValueError("the factors do not fit")
    longer, shorter = sorted((list(left[:-2]), list(right[:-2])), key=len, reverse=True)
    shorter = [1] * (len(longer) - len(shorter)) + shorter
    batch = prod(max(pair) for pair in zip(longer, shorter, strict=True))
    return int(2 * batch * left[-2] * left[-1] * right[-1])


def _linear(shapes: Sequence[Any], _values: Sequence[Any]) -> int:
    return int(2 * prod(shapes[0]) * shapes[1][0])


def _forward(shapes: Sequence[Any], values: Sequence[Any]) -> int:
    """Count `conv1d` to `conv3d`: input, weights, bias, stride, padding, dilation, groups."""
    return _convolution(shapes[0], shapes[1], values[3:6], False, [0])


def _general(shapes: Sequence[Any], values: Sequence[Any]) -> int:
    """Count `convolution`, which may be transposed."""
    return _convolution(shapes[0], shapes[1], values[3:6], values[6], values[7])


def _backward(shapes: Sequence[Any], values: Sequence[Any]) -> int:
    """Count `convolution_backward`: each wanted gradient does the work of the forward pass."""
    passes = sum(map(bool, values[10][:2]))
    return passes * _convolution(shapes[1], shapes[2], values[4:7], values[7], values[8])


def _convolution(
    x: Shape, weight: Shape, geometry: Sequence[Any], transposed: Any, more: Sequence[int]
) -> int:
    """Count two operations a tap. `geometry` is stride, padding and dilation, of one number each or
    one for each axis. `more` is the padding of a transposed result."""
    if len(x) != len(weight) or len(x) < 3:
        raise ValueError("an image of a batch is expected")
    pairs = 1
    for axis, (size, window) in enumerate(zip(x[2:], weight[2:], strict=True)):
        stride, pad, spread, extra = (
            int(each[axis if len(each) > 1 else 0]) for each in (*geometry, more)
        )
        reach = spread * (window - 1) + 1
        if transposed:
            # The input has the place of the results, as in the gradient of a convolution.
            inner, results = (size - 1) * stride - 2 * pad + reach + extra, size
        else:
            inner, results = size, (size + 2 * pad - reach) // stride + 1
        pairs *= taps(inner, results, window, stride, spread - 1, pad)
    # The weights of a transposed convolution have the input's channels first. The product is equal.
    return int(2 * x[0] * weight[0] * weight[1] * pairs)


_COUNTS: dict[str, Callable[[Sequence[Any], Sequence[Any]], int]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "matmul", "dot"), _product(0)),
    **dict.fromkeys(("addmm", "addmm_", "baddbmm", "baddbmm_", "addmv", "addmv_"), _product(1)),
    "linear": _linear,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _forward),
    **dict.fromkeys(("convolution", "_convolution"), _general),
    "convolution_backward": _backward,
}
