"""PyTorch's operators that write their result into the arena, in channels last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.fx import Node

from bestof.torch.plan.operations.checks import expect, is_rows, operation_of, val
from bestof.torch.plan.operations.operation import Operation
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import MULTIPLIED

aten = torch.ops.aten

# Each with its form that writes. All of them accept channels last as well as channels first.
_WRITING: dict[Any, Any] = {
    aten.cat.default: aten.cat.out,
    aten.add.Tensor: aten.add.out,
    aten.sub.Tensor: aten.sub.out,
    aten.mul.Tensor: aten.mul.out,
    aten.div.Tensor: aten.div.out,
    aten.sigmoid.default: aten.sigmoid.out,
    aten.tanh.default: aten.tanh.out,
    aten.silu.default: aten.silu.out,
    aten.gelu.default: aten.gelu.out,
    aten.hardtanh.default: aten.hardtanh.out,
    aten.hardsigmoid.default: aten.hardsigmoid.out,
    aten.hardswish.default: aten.hardswish.out,
    aten.leaky_relu.default: aten.leaky_relu.out,
    aten.elu.default: aten.elu.out,
    aten.upsample_nearest2d.default: aten.upsample_nearest2d.out,
    aten.upsample_bilinear2d.default: aten.upsample_bilinear2d.out,
}


@dataclass(frozen=True, slots=True)
class Written(Operation):
    """The operator that the node names, by its form that writes into given memory."""

    name: ClassVar[str] = "written"
    yields_rows: ClassVar[bool] = True

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step, which looks up the arguments at each call."""
        write, out, slots = _WRITING[node.target], placed.out, placed.slots
        positional, named = placed.arguments()
        dead = placed.dead

        def run() -> None:
            write(
                *[find() for find in positional],
                **{name: find() for name, find in named.items()},
                out=out,
            )
            for one in dead:
                slots[one] = None

        return placed.step(str(write), run)

    def check(self, node: Node) -> None:
        """Raise ValueError if the operator has no such form, or yields another shape or type."""
        expect(node.target in _WRITING, node.name)
        target: Any = node.target
        found = target(*_values(node.args), **_values(node.kwargs))
        same = found.shape == val(node).shape and found.dtype is val(node).dtype
        expect(is_rows(node) and same, node.name)


def may_be_written(node: Node) -> bool:
    """Return whether a node without an operation can be `Written`, and a value in channels last."""
    value = node.meta.get("val")
    if node.target not in _WRITING or not isinstance(value, Tensor):
        return False
    if value.dim() != 4 or value.numel() == 0 or value.dtype not in MULTIPLIED:
        return False
    tensors = [value, *(given.meta.get("val") for given in node.all_input_nodes)]
    plain = all(
        isinstance(one, Tensor) and one.dtype is value.dtype and one.device.type == "cpu"
        for one in tensors
    )
    given = map(operation_of, node.all_input_nodes)
    return plain and any(one is not None and one.yields_rows for one in given)


def _values(value: Any) -> Any:
    if isinstance(value, Node):
        return val(value)
    if isinstance(value, list | tuple):
        return [_values(one) for one in value]
    return {name: _values(one) for name, one in value.items()} if isinstance(value, dict) else value
