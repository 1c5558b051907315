"""Calls whose inputs are padded to a planned length, and whose results are cut again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bestof.errors import InvalidArgument, TorchError
from bestof.torch.ops.distance import are_equal
from bestof.torch.plan.lengths import Lengths
from bestof.torch.plan.trace.eager_run import eager_outputs

_MASK = (
    "padding must not change the results: give the model a mask, and pad the mask with the number "
    "that hides what is padded"
)


class Padding(NamedTuple):
    """How calls are padded. axes: of each flattened result, those that have the length."""

    lengths: Lengths
    axes: tuple[tuple[int, ...], ...]

    def apply(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], int | None]:
        """Return the arguments at a planned length, and the length that results are cut to.

        None if nothing is padded.
        """
        length = self.lengths.of(args, kwargs)
        if not 0 < length <= self.lengths.most:
            return args, kwargs, None
        planned = self.lengths.planned_for(length)
        if planned == length:
            return args, kwargs, None
        return *self.lengths.resized(args, kwargs, planned), length

    def cut(self, results: Sequence[Any], length: int) -> list[Any]:
        """Return flattened results without what belongs to padding."""
        return [_cut(one, axes, length) for one, axes in zip(results, self.axes, strict=True)]


def _cut(one: Any, axes: tuple[int, ...], length: int) -> Any:
    for axis in axes:
        one = one.narrow(axis, 0, length)
    return one.contiguous() if axes else one


def padding_of(
    model: nn.Module, lengths: Lengths, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Padding:
    """Return the padding of a model's calls, which is tried on an example.

    The model runs in eager mode at two lengths, one of them padded. Axes of results that differ
    have the length. InvalidArgument if the example is too long. TorchError if the model changes
    padded arguments, if an axis of a result grows otherwise, or if padding changes results.
    """
    length = lengths.of(args, kwargs)
    if not 0 < length <= lengths.most:
        raise InvalidArgument(
            f"optimize: lengths: the example has the length {length}; expected 1 to {lengths.most}"
        )
    planned = lengths.planned_for(length)
    if planned == length:  # a shorter example shows what padding does
        length -= 1
    short = lengths.resized(args, kwargs, length)
    padded = lengths.resized(*short, planned)
    results, left = eager_outputs(model, *short)
    given = [one for one in (*short[0], *short[1].values()) if isinstance(one, Tensor)]
    if len(given) == len(left) and not all(map(are_equal, given, left)):
        raise TorchError("optimize: the model changes its inputs, which cannot be padded then")
    more, _ = eager_outputs(model, *padded)
    if len(more) != len(results):
        raise TorchError(
            f"optimize: lengths: the model returns {len(results)} values, or {len(more)} if padded"
        )
    axes = tuple(
        _growing(place, one, other, length, planned)
        for place, (one, other) in enumerate(zip(results, more, strict=True))
    )
    padding = Padding(lengths, axes)
    for place, (right, got) in enumerate(zip(results, padding.cut(more, length), strict=True)):
        if isinstance(right, Tensor) and not _agree(right, got):
            raise TorchError(
                f"optimize: lengths: result {place} for {length} padded to {planned} differs from "
                f"that for {length}; {_MASK}"
            )
    return padding


def _growing(place: int, one: Any, other: Any, length: int, planned: int) -> tuple[int, ...]:
    """Return the axes of a result that have the length."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return ()
    pairs = list(zip(one.shape, other.shape, strict=True)) if one.dim() == other.dim() else []
    axes = tuple(axis for axis, (mine, theirs) in enumerate(pairs) if mine != theirs)
    if one.dim() != other.dim() or any(pairs[axis] != (length, planned) for axis in axes):
        raise TorchError(
            f"optimize: lengths: result {place} has the shape {tuple(one.shape)} for the length "
            f"{length}, and {tuple(other.shape)} for {planned}; an axis must have the length, or "
            "not depend on it"
        )
    return axes


def _agree(right: Tensor, got: Tensor) -> bool:
    """Return whether results agree to half of their digits.

    Rounding explains less; a mask that is missing changes more.
    """
    if not right.is_floating_point():
        return torch.equal(right, got)
    finite = torch.isfinite(right)
    if not torch.equal(finite, torch.isfinite(got)):
        return False
    expected = right[finite].double()
    allowed = torch.finfo(right.dtype).eps ** 0.5 * expected.square().mean().sqrt()
    off = (got[finite].double() - expected).square().mean().sqrt()
    return not expected.numel() or bool(off <= allowed)
