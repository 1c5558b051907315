"""The steps that PyTorch runs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from bestof.torch.ops.convolution.onednn import serves_operator
from bestof.torch.ops.memory_format import in_format, layout_of
from bestof.torch.plan.memory.arena import Arena
from bestof.torch.plan.run.unchecked_operands import checked
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import argument, pair
from bestof.torch.plan.trace.mutation import aliased_argument

aten = torch.ops.aten

_CONVOLUTIONS = frozenset(
    {
        aten.conv2d.default,
        aten.conv2d.padding,
        aten.convolution.default,
        aten.conv_transpose2d.input,
    }
)
_GROUP_NORMS = frozenset({aten.group_norm.default, aten.native_group_norm.default})


def torch_step(node: Node, placed: PlacedNode) -> Step:
    """Return the step of a node without an operation, which calls PyTorch's operator.

    Some operators return a view, or the argument itself, without saying so in their schema. Then
    the plan does not know how long that memory is needed: a result that lies in the arena is copied
    out of it.
    """
    target: Any = node.target
    positional, named = placed.arguments()
    slots, slot, dead = placed.slots, placed.slot, placed.dead
    known = target is operator.getitem or aliased_argument(node) is not None
    arena = None if known else placed.arena
    if target is aten.as_strided.default:
        target = _strided_within(node, placed.arena)
    elif _reads_channels_first(node):
        target = partial(_in_channels_first, target)
    else:
        target = checked(target)

    def run() -> None:
        result = target(
            *[find() for find in positional], **{name: find() for name, find in named.items()}
        )
        slots[slot] = result if arena is None else _outside(arena, result)
        for one in dead:
            slots[one] = None

    return placed.step(str(target), run)


def _reads_channels_first(node: Node) -> bool:
    """Return whether an operator must be given its image in channels first.

    The plan may keep a value in channels last that the model has otherwise. If the model has it in
    channels last too, nothing is copied. oneDNN does not serve each convolution in channels last.
    PyTorch's group norm subtracts the square of the mean from the mean of the squares there: the
    error is 2e-3, and 5e-6 in channels first, if the mean is 100 standard deviations.
    """
    if node.target not in _CONVOLUTIONS | _GROUP_NORMS:
        return False
    image = argument(node, "input")
    value = image.meta["val"] if isinstance(image, Node) else None
    # The values of a plan from a file have no memory, so their device is "meta".
    if not isinstance(value, Tensor) or value.device.type not in ("cpu", "meta"):
        return False
    if value.dim() not in (4, 5) or layout_of(value) == "channels_last":
        return False
    return node.target in _GROUP_NORMS or (value.dim() == 4 and not _is_served(node))


def _is_served(node: Node) -> bool:
    """Return whether oneDNN serves a convolution of an image in channels last."""
    x, weight = (argument(node, name) for name in ("input", "weight"))
    if not isinstance(weight, Node):
        return True
    given, by = x.meta["val"], weight.meta["val"]
    padding, dilation = argument(node, "padding"), pair(argument(node, "dilation"))
    if isinstance(padding, str):
        rows, columns = (
            step * (taps - 1) // 2 if padding == "same" else 0
            for step, taps in zip(dilation, by.shape[2:], strict=True)
        )
        padding = rows, columns
    is_transposed = node.target is aten.conv_transpose2d.input or (
        node.target is aten.convolution.default and argument(node, "transposed")
    )
    dtype, stride = str(given.dtype).removeprefix("torch."), pair(argument(node, "stride"))
    more = pair(argument(node, "output_padding")) if is_transposed else None
    geometry = stride, pair(padding), dilation, argument(node, "groups"), more
    return serves_operator(given.shape, by.shape, dtype, *geometry)


def _in_channels_first(target: Callable[..., Any], input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Call an operator on an image in channels first, of 2 or 3 dimensions.

    The strides of an image of one pixel tell PyTorch its format, too.
    """
    image = in_format(input, False) if input.dim() == 4 else input.contiguous()
    return target(image, *args, **kwargs)


def _strided_within(node: Node, arena: Arena) -> Callable[..., Tensor]:
    """Return `as_strided` whose offset counts from where the traced value's memory began.

    PyTorch counts from the beginning of the storage, and all values of an arena share one.
    """
    traced = node.args[0]
    assert isinstance(traced, Node)
    before = traced.meta["val"].storage_offset()

    def run(
        value: Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
    ) -> Tensor:
        if storage_offset is not None and arena.holds(value):
            storage_offset += value.storage_offset() - before
        return value.as_strided(size, stride, storage_offset)

    return run


def _outside(arena: Arena, result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.clone() if arena.holds(result) else result
    if isinstance(result, list | tuple):
        return [_outside(arena, one) for one in result]
    return result
