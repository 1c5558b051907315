"""Checks the arguments that describe a convolution, and makes its problem."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.pair import Pair, integer, integer_of, pair_of

Padding: TypeAlias = "int | Sequence[int] | Sequence[Sequence[int]]"
Activation: TypeAlias = "str | tuple[str, float] | None"


def problem_of(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    stride: Pair,
    padding: Padding,
    dilation: Pair,
    groups: int,
    dtype: str = "float32",
    x_layout: str = "channels_last",
) -> _native.Problem:
    """Return the problem that arguments of `conv2d` describe. Raises KernelError for invalid
    ones."""
    if x_layout not in ("channels_last", "channels_first"):
        raise KernelError(f"x_layout: expected channels_last or channels_first; got {x_layout!r}")
    return _checked_problem(
        x_shape,
        w_shape,
        pair_of(stride, "stride"),
        _pads(padding),
        pair_of(dilation, "dilation"),
        integer_of(groups, "groups"),
        dtype,
        x_layout == "channels_first",
    )


@lru_cache(maxsize=4096)
def _checked_problem(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    stride: tuple[int, int],
    pads: _Pads,
    dilation: tuple[int, int],
    groups: int,
    dtype: str,
    planes: bool,
) -> _native.Problem:
    try:
        return _native.Problem(
            list(x_shape), list(w_shape), [*stride, *pads, *dilation, groups], dtype, planes
        )
    except TypeError:
        raise KernelError(
            f"shapes: expected integers; got x {x_shape}, w {w_shape}, stride {stride}, "
            f"padding {pads}, dilation {dilation}, groups {groups}"
        ) from None


class _Pads(NamedTuple):
    top: int
    bottom: int
    left: int
    right: int


def _pads(value: Padding) -> _Pads:
    every = integer(value)
    if every is not None:
        return _Pads(every, every, every, every)
    try:
        y, x = value  # type: ignore[misc]  # an integer was taken above
        top, bottom = (y, y) if integer(y) is not None else y  # type: ignore[misc]  # a pair
        left, right = (x, x) if integer(x) is not None else x  # type: ignore[misc]  # as above
    except (TypeError, ValueError):
        raise KernelError(
            f"padding: expected an integer, a pair, or ((top, bottom), (left, right)); "
            f"got {value!r}"
        ) from None
    pads = [one for pad in (top, bottom, left, right) if (one := integer(pad)) is not None]
    if len(pads) != 4:
        raise KernelError(f"padding: expected integers; got {value!r}")
    return _Pads(*pads)


def activation_of(value: Activation) -> tuple[str, float]:
    """Return the name ("" for None) and the slope of the argument `activation`."""
    if value is None:
        return "", 0.0
    if isinstance(value, str):
        return value, 0.01
    try:
        name, slope = value
        slope = float(slope)
    except (TypeError, ValueError):
        name = None
    if not isinstance(name, str):
        raise KernelError(f"activation: expected a name, or (name, slope); got {value!r}")
    return name, slope


def direction_of(value: object) -> str:
    """Return the argument `direction`; raise KernelError unless it is a string."""
    if not isinstance(value, str):
        raise KernelError(
            f"direction: expected forward, backward_input or backward_weight; got {value!r}"
        )
    return value


def algorithm_of(value: object) -> str:
    """Return the argument `algorithm`; raise KernelError unless it is a string."""
    if not isinstance(value, str):
        raise KernelError(f"algorithm: expected a name of conv2d_algorithms; got {value!r}")
    return value
