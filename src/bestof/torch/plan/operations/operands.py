"""Values that native kernels read by their addresses, checked at each call."""

from __future__ import annotations

from torch import Tensor

from bestof.errors import TorchError


def as_planned(value: Tensor, planned: Tensor, what: str) -> Tensor:
    """Return a value whose memory holds the numbers; TorchError for an unplanned value."""
    if value.dtype is not planned.dtype or value.shape != planned.shape:
        raise TorchError(
            f"optimize: {what} was planned for {str(planned.dtype).removeprefix('torch.')} "
            f"{tuple(planned.shape)}; it got {value.dtype} {tuple(value.shape)}: an operator "
            "before it returned another type than when it was traced"
        )
    return value.resolve_neg() if value.is_neg() else value


def side_by_side(value: Tensor) -> Tensor:
    """Return a value whose last axis has stride 1: itself, or a copy."""
    return value if value.stride(-1) == 1 else value.contiguous()
