"""Focal loss, forward and backward in one pass."""

from __future__ import annotations

from typing import NamedTuple

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.array import Array, check_detached, empty_like, shape_of
from bestof.kernels.pair import threads_of

_REDUCTIONS = ("sum", "none")


class FocalLoss(NamedTuple):
    """The loss, a number or an array as x, and its gradient with respect to x."""

    loss: float | Array
    gradient: Array


def focal_loss(
    x: Array,
    targets: Array,
    *,
    alpha: float | None = 0.25,
    gamma: float = 2.0,
    scale: float = 1.0,
    reduction: str = "sum",
    gradient: Array | None = None,
    threads: int | None = None,
) -> FocalLoss:
    """Return the focal loss (Lin et al., 2017) and its gradient with respect to x.

    The loss of an element is scale * a_t * om ** gamma * ce. With p = sigmoid(x), ce is the binary
    cross entropy of p, om = p (1 - targets) + (1 - p) targets, and a_t = alpha targets +
    (1 - alpha)(1 - targets). If alpha is None or negative, a_t is 1.

    x: logits of any shape, float32, C-contiguous, on the CPU. Every finite logit is stable.
    targets: as x, in [0, 1]. scale: for a mean, 1 / elements or 1 / positives.
    reduction: "sum", or "none" for one loss an element. gradient: the array to write the gradient
    to; it must not overlap x or targets.
    The result does not depend on the number of threads. Raises KernelError before anything is
    written.
    """
    if reduction not in _REDUCTIONS:
        raise KernelError(f"reduction: expected sum or none; got {reduction!r}")
    numbers = (
        _number(-1.0 if alpha is None else alpha, "alpha"),
        _number(gamma, "gamma"),
        _number(scale, "scale"),
    )
    check_detached(x=x, targets=targets, gradient=gradient)
    shape = shape_of(x, "x")
    if gradient is None:
        gradient = empty_like(x, shape)
    losses = empty_like(x, shape) if reduction == "none" else None
    total = _native.focal_loss(x, targets, losses, gradient, *numbers, threads_of(threads))
    return FocalLoss(total if losses is None else losses, gradient)


def _number(value: float, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise KernelError(f"{name}: expected a number; got {value!r}") from None
