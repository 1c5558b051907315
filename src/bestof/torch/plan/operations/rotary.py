"""Rotary position embedding of queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.fx import Node

from bestof.accuracy import Accuracy
from bestof.torch.ops import table
from bestof.torch.ops.dtypes import name_of
from bestof.torch.ops.operation import Operation as EagerOperation
from bestof.torch.ops.rotary.rotary import RotaryProblem, fits
from bestof.torch.plan.operations.checks import expect, val
from bestof.torch.plan.operations.operands import as_planned, side_by_side
from bestof.torch.plan.operations.operation import Operation
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.steps.chosen_step import Choice
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.row_step import RowProblem, RowStep
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import (
    MULTIPLIED,
    argument,
    is_plain,
    only_user,
    other_argument,
    shape_of,
)
from bestof.torch.plan.trace.strides import with_strides
from bestof.torch.rows.offer import is_chosen_for
from bestof.torch.rows.row_selector import row_selector

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Rotary(Operation):
    """x * cos + turned(x) * sin, where turned(x) is (-second half, first half) of the last axis.

    The node's arguments: x (batch, heads, tokens, size); cos and sin, which broadcast to it and
    have all numbers of a token.
    """

    name: ClassVar[str] = "rotary"
    reads_parts: ClassVar[bool] = True

    @classmethod
    def recognisers(cls) -> Mapping[Any, Callable[[Rewriter, Node], object]]:
        """Return the operator that turns x, which is a part of the whole."""
        return {aten.cat.default: _recognise}

    def choice(self, node: Node, accuracy: Accuracy) -> Choice:  # noqa: ARG002  # of any
        """Return the choice among the rows."""
        shape, dtype = shape_of(node), name_of(val(node).dtype)
        return Choice(RowProblem(_rows(), RotaryProblem(shape, torch.get_num_threads(), dtype)))

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step; operands are looked up at each call.

        The kernel is made for the strides that they have at the first call.
        """
        finders = [(placed.finder(one), val(one)) for one in node.args]
        met: list[tuple[int, ...]] = []

        def operands() -> list[Tensor]:
            found = [as_planned(find(), one, "a rotary embedding") for find, one in finders]
            if not met:
                found = [side_by_side(one) for one in found]
                met.extend(one.stride() for one in found)
            return [with_strides(one, strides) for one, strides in zip(found, met, strict=True)]

        out = placed.out
        step = RowStep(
            placed.own_choice,
            row_selector(_rows()),
            operands,
            (out,),
            out.copy_,
            None,
            lambda: None,
        )
        return placed.step(str(step.problem), step.run, step)

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree."""
        expect(len(node.args) == 3, node.name)
        dtypes = {val(one).dtype for one in (node, *node.args)}
        expect(len(dtypes) == 1 and dtypes <= MULTIPLIED, node.name)
        expect(fits(*(shape_of(one) for one in node.args)), node.name)
        expect(shape_of(node) == shape_of(node.args[0]), node.name)


def _rows() -> EagerOperation[Any]:
    """Return the operation that chooses among rows."""
    return table.named(Rotary.name, "optimize")


def _recognise(rewriter: Rewriter, turned: Node) -> None:
    """Replace x * cos + cat(-second half, first half) * sin, given the cat."""
    if not is_chosen_for(_rows()):
        return
    x = _turned(turned)
    by_sin = only_user(turned)
    if x is None or by_sin is None or by_sin.target is not aten.mul.Tensor:
        return
    total = only_user(by_sin)
    if total is None or total.target is not aten.add.Tensor or total.kwargs:
        return
    by_cos = other_argument(total, by_sin)
    if not isinstance(by_cos, Node) or by_cos.target is not aten.mul.Tensor:
        return
    if x not in by_cos.args or only_user(by_cos) is None:
        return
    cos, sin = other_argument(by_cos, x), other_argument(by_sin, turned)
    dtypes = {val(x).dtype} & MULTIPLIED
    if not all(is_plain(one, None, dtypes) for one in (x, cos, sin, total)):
        return
    if fits(*map(shape_of, (x, cos, sin))) and shape_of(total) == shape_of(x):
        rewriter.replace(total, Rotary(), x, cos, sin)


def _turned(cat: Node) -> Node | None:
    """Return x of cat(-second half of x, first half of x) along its last axis; None if it is no
    such thing.
    """
    parts, axis = cat.args[0], cat.args[1] if len(cat.args) > 1 else 0
    if not isinstance(parts, list | tuple) or len(parts) != 2:
        return None
    negated, first = parts
    if not isinstance(negated, Node) or negated.target is not aten.neg.default:
        return None
    second = negated.args[0]
    if not isinstance(first, Node) or not isinstance(second, Node):
        return None
    x = first.args[0] if first.target is aten.slice.Tensor else None
    if not isinstance(x, Node) or second.target is not aten.slice.Tensor or second.args[0] is not x:
        return None
    last, size = len(shape_of(x)) - 1, shape_of(x)[-1]
    if axis not in (-1, last) or size % 2:
        return None
    halves = _range(first, last, size), _range(second, last, size)
    return x if halves == ((0, size // 2), (size // 2, size)) else None


def _range(part: Node, last: int, size: int) -> tuple[int, int] | None:
    """Return where a slice of the last axis begins and ends; None for other slices."""
    names = ("dim", "start", "end", "step")
    axis, start, end, step = (argument(part, name) for name in names)
    if axis not in (-1, last) or step != 1:
        return None
    begin, behind, _ = slice(start, end).indices(size)
    return begin, behind
