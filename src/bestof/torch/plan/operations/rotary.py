"""Rotary position embedding of queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.fx import Node

from bestof.accuracy import Accuracy
from bestof.kernels import RotaryPlan
from bestof.torch.ops.dtypes import words_of
from bestof.torch.plan.operations.checks import expect, val
from bestof.torch.plan.operations.operands import as_planned, side_by_side
from bestof.torch.plan.operations.operation import Operation
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.steps.chosen_step import Choice
from bestof.torch.plan.steps.place import Place
from bestof.torch.plan.steps.raced_step import RacedProblem, RacedStep
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import (
    MULTIPLIED,
    argument,
    is_plain,
    only_user,
    other_argument,
    shape_of,
)

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
        """Return the choice between PyTorch's operator and the kernel."""
        words = ["x".join(map(str, shape_of(node)))]
        words += words_of(val(node).dtype)
        return Choice(RacedProblem.of("rotary", " ".join(words)))

    def bind(self, node: Node, place: Place) -> Step:
        """Return the step; values outside of the arena are looked up at each call."""
        out, plans = place.out, dict[tuple[tuple[int, ...], ...], RotaryPlan]()
        finders = [place.finder(one) for one in node.args]
        planned, dtype = [val(one) for one in node.args], str(out.dtype).removeprefix("torch.")
        at = out.data_ptr()

        def native() -> None:
            values = [
                side_by_side(as_planned(find(), one, "a rotary embedding"))
                for find, one in zip(finders, planned, strict=True)
            ]
            strides = tuple(one.stride() for one in values)
            if (plan := plans.get(strides)) is None:
                shapes = [one.shape for one in planned]
                plan = plans[strides] = RotaryPlan(shapes, strides, dtype=dtype)
            x, cos, sin = values
            plan.run(x.data_ptr(), cos.data_ptr(), sin.data_ptr(), at)

        def computed(dtype: torch.dtype) -> Tensor:
            x, cos, sin = (find().to(dtype) for find in finders)
            first, second = x.chunk(2, -1)
            return x * cos + torch.cat((-second, first), -1) * sin  # type: ignore[no-any-return]

        def pytorch() -> None:
            out.copy_(computed(out.dtype))

        step = RacedStep(place.own_choice, pytorch, native, lambda: computed(torch.float64), out)
        return place.step(str(step.problem), step.run, step)

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree."""
        expect(len(node.args) == 3, node.name)
        dtypes = {val(one).dtype for one in (node, *node.args)}
        expect(len(dtypes) == 1 and dtypes <= MULTIPLIED, node.name)
        expect(_fit(*(shape_of(one) for one in node.args)), node.name)
        expect(shape_of(node) == shape_of(node.args[0]), node.name)


def _fit(x: tuple[int, ...], *tables: tuple[int, ...]) -> bool:
    """Return whether the native kernel computes values of these shapes."""
    if len(x) != 4 or 0 in x or x[3] % 2:
        return False
    return all(
        1 <= len(one) <= 4
        and one[-1] == x[3]
        and all(extent in (1, of) for extent, of in zip(one[::-1], x[::-1], strict=False))
        for one in tables
    )


def _recognise(rewriter: Rewriter, turned: Node) -> None:
    """Replace x * cos + cat(-second half, first half) * sin, given the cat."""
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
    if _fit(*map(shape_of, (x, cos, sin))) and shape_of(total) == shape_of(x):
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
