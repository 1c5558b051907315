"""What `prepare` plans: shapes, or inputs like those of a call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bestof.errors import InvalidArgument

_EXPECTED = (
    "expected a list whose items are shapes such as (8, 3, 224, 224), tuples of shapes if the "
    "model takes several tensors, or inputs as `optimize` takes them"
)


def inputs_of(shapes: object, example: list[Any], spec: Any) -> list[tuple[list[Any], Any]]:
    """Return the flattened inputs, and how they nest, of each item that `prepare` is given.

    example, spec: the flattened arguments of an example, and how they nest. A shape stands for
    these arguments with a tensor of this shape. Floating-point numbers are normal, others 0.
    InvalidArgument for anything else.
    """
    if isinstance(shapes, Tensor) or not isinstance(shapes, Iterable):
        raise InvalidArgument(f"prepare: {_EXPECTED}; got a {type(shapes).__name__}")
    return [_inputs(one, example, spec) for one in shapes]


def _inputs(item: object, example: list[Any], spec: Any) -> tuple[list[Any], Any]:
    if isinstance(item, Tensor):
        item = (item,)
    if not isinstance(item, tuple | list):
        raise InvalidArgument(f"prepare: {_EXPECTED}; got the item {item!r:.80}")
    if any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(item)):
        kwargs = pytree.tree_unflatten(list(example), spec)[1]
        if any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(kwargs)):
            raise InvalidArgument(
                "prepare: the example has tensors among its keyword arguments: give shapes, one "
                "for each tensor"
            )
        return pytree.tree_flatten((tuple(item), kwargs))
    wanted = [item] if _is_shape(item) else list(item)
    tensors = sum(isinstance(leaf, Tensor) for leaf in example)
    if not all(map(_is_shape, wanted)) or len(wanted) != tensors:
        raise InvalidArgument(
            f"prepare: {_EXPECTED}; got the item {item!r:.80}, and the plan takes {tensors} "
            f"tensor{'s' * (tensors != 1)}"
        )
    rest = iter(wanted)
    leaves = [_made_up(leaf, next(rest)) if isinstance(leaf, Tensor) else leaf for leaf in example]
    return leaves, spec


def _is_shape(item: object) -> bool:
    return isinstance(item, tuple | list) and all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in item
    )


def _made_up(example: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a tensor of another shape, in channels last if the example is."""
    if example.is_floating_point():
        made = torch.randn(tuple(shape), generator=torch.Generator().manual_seed(0))
        made = made.to(example.dtype)
    else:
        made = torch.zeros(tuple(shape), dtype=example.dtype)
    last = torch.channels_last
    is_last = example.dim() == 4 and example.is_contiguous(memory_format=last)
    if is_last and not example.is_contiguous() and made.dim() == 4:
        return made.contiguous(memory_format=last)
    return made
