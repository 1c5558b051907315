"""Scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from bestof.accuracy import Accuracy
from bestof.kernels import AttentionPlan
from bestof.torch.ops.dtypes import words_of
from bestof.torch.plan.operations.by_row import described, operation_of_call
from bestof.torch.plan.operations.checks import expect, val
from bestof.torch.plan.operations.operands import as_planned, side_by_side
from bestof.torch.plan.operations.operation import Operation
from bestof.torch.plan.operations.rewriter import Rewriter
from bestof.torch.plan.steps.chosen_step import Choice
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.raced_step import NATIVE, PYTORCH, RacedProblem, RacedStep
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.graph import (
    MULTIPLIED,
    argument,
    behind,
    is_plain,
    only_user,
    shape_of,
    value_of,
)
from bestof.torch.rows.row_selector import row_selector

aten = torch.ops.aten

# The operator of eager calls, and its rows by the names of this step's alternatives.
_EAGER = "aten::_scaled_dot_product_flash_attention_for_cpu"
_BY_ROW = {"as is": PYTORCH, "native": NATIVE}

_OPERANDS = ("q", "k", "v", "out", "mask", "logsumexp")


@dataclass(frozen=True, slots=True)
class Attention(Operation):
    """softmax(scale q k^T + mask) v, with the heads of a token side by side in the result.

    The node's arguments: q (batch, heads, T, size); k and v (batch, shared heads, S, size), each
    shared by equally many heads of q; and a mask to add, if any. The result is (batch, T, heads,
    size), which the next layer reads as rows.
    """

    name: ClassVar[str] = "attention"
    reads_parts: ClassVar[bool] = True

    scale: float
    causal: bool

    @classmethod
    def recognisers(cls) -> Mapping[Any, Callable[[Rewriter, Node], object]]:
        """Return the operator that may become an attention."""
        return {aten.scaled_dot_product_attention.default: _recognise}

    def choice(self, node: Node, accuracy: Accuracy) -> Choice:  # noqa: ARG002  # of any
        """Return the choice between PyTorch's operator and the kernel."""
        q, k, _, *mask = ("x".join(map(str, shape_of(one))) for one in node.args)
        shapes = [f"q {q}", f"k {k}", *(f"mask {one}" for one in mask)]
        words = ["causal"] * self.causal + words_of(val(node).dtype)
        return Choice(RacedProblem.of("attention", ", ".join([*shapes, *words])))

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step; operands are looked up at each call."""
        given = [val(one) for one in node.args]
        shapes = [one.shape for one in given]
        finders, out = [placed.finder(one) for one in node.args], placed.out
        planned, at = self._planner(shapes, out.transpose(1, 2)), out.data_ptr()

        def native() -> None:
            operands = [
                side_by_side(as_planned(find(), one, "attention"))
                for find, one in zip(finders, given, strict=True)
            ]
            q, k, v, *mask = (one.data_ptr() for one in operands)
            planned([one.stride() for one in operands]).run(q, k, v, at, *mask)

        def computed(dtype: torch.dtype) -> Tensor:
            q, k, v, *mask = (find() for find in finders)
            q, k, v = (one.to(dtype) for one in (q, k, v))
            # A mask of float32 stays beside operands of bfloat16, as in eager mode: rounding makes
            # its smallest number, by which many models hide keys, minus infinity.
            if dtype is torch.float64:
                mask = [one.to(dtype) for one in mask]
            found = F.scaled_dot_product_attention(
                *(q, k, v, mask[0] if mask else None),
                is_causal=self.causal,
                scale=self.scale,
                enable_gqa=k.shape[1] != q.shape[1],
            )
            return found.transpose(1, 2)

        def pytorch() -> None:
            out.copy_(computed(out.dtype))

        step = RacedStep(
            *(placed.own_choice, pytorch, native, lambda: computed(torch.float64), out),
            eager=self._eager(node),
        )
        return placed.step(str(step.problem), step.run, step)

    def _eager(self, node: Node) -> Callable[[], str | None]:
        """Return a function that tells what eager calls of the same attention have chosen."""
        q, k, v, *mask = (described(one) for one in node.args if isinstance(one, Node))
        given = q, k, v, 0.0, self.causal, mask[0] if mask else None, self.scale
        found = operation_of_call(_EAGER, given, "float32")
        if found is None:
            return lambda: None
        rows, problem = row_selector(found[0]), found[1].problem

        def chosen() -> str | None:
            row = rows.chosen(problem)
            return None if row is None else _BY_ROW.get(row.name)

        return chosen

    def _planner(
        self, shapes: list[torch.Size], out: Tensor
    ) -> Callable[[list[tuple[int, ...]]], AttentionPlan]:
        """Return a function from the strides of the operands to a plan, made once for each."""
        plans: dict[tuple[tuple[int, ...], ...], AttentionPlan] = {}

        def planned(strides: list[tuple[int, ...]]) -> AttentionPlan:
            key = tuple(strides)
            if key not in plans:
                q, k, v, *mask = zip(shapes, strides, strict=True)
                operands = [q, k, v, (out.shape, out.stride()), *mask]
                absent = [None] * (len(_OPERANDS) - len(operands))
                plans[key] = AttentionPlan(
                    [*(shape for shape, _ in operands), *absent],
                    [*(stride for _, stride in operands), *absent],
                    causal=self.causal,
                    scale=self.scale,
                    dtype=str(out.dtype).removeprefix("torch."),
                )
            return plans[key]

        return planned

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree, or the options cannot be used."""
        expect(isinstance(self.scale, float) and isinstance(self.causal, bool), node.name)
        expect(len(node.args) in (3, 4), node.name)
        dtypes = [val(one).dtype for one in (node, *node.args)]
        expect(dtypes[0] in MULTIPLIED and {*dtypes[:4]} == {dtypes[0]}, node.name)
        expect({*dtypes[4:]} <= {torch.float32}, node.name)
        expect(_fit(*(shape_of(one) for one in node.args)), node.name)
        batch, heads, queries, size = shape_of(node.args[0])
        expect(shape_of(node) == (batch, queries, heads, size), node.name)


def _fit(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], mask: tuple[int, ...] | None = None
) -> bool:
    """Return whether the native kernel computes attention of these shapes."""
    if not (len(q) == len(k) == 4 and k == v) or 0 in (*q, *k):
        return False
    if q[0] != k[0] or q[3] != k[3] or q[1] % k[1]:
        return False
    scores = (*q[:3], k[2])
    return mask is None or (
        len(mask) in (2, 4)
        and all(one in (1, of) for one, of in zip(mask, scores[-len(mask) :], strict=True))
    )


def _recognise(rewriter: Rewriter, node: Node) -> None:
    """Replace an attention and the transposition that brings the heads of a token together."""
    q, k, v, mask = (argument(node, name) for name in ("query", "key", "value", "attn_mask"))
    turned, causal = only_user(node), bool(argument(node, "is_causal"))
    if turned is None or turned.target is not aten.transpose.int or turned.args[1:] != (1, 2):
        return
    dtypes = {val(node).dtype} & MULTIPLIED
    if not all(is_plain(one, 4, dtypes) for one in (node, q, k, v)):
        return
    if argument(node, "dropout_p") != 0:
        return
    if not argument(node, "enable_gqa") and shape_of(q)[1] != shape_of(k)[1]:
        return
    k, v = _unrepeated(k), _unrepeated(v)
    masks = [] if mask is None else [_added(mask)]
    if None in masks or (masks and causal):
        return
    operands = [q, k, v, *masks]
    if not _fit(*map(shape_of, operands)):
        return
    scale = argument(node, "scale")
    scale = shape_of(q)[-1] ** -0.5 if scale is None else float(scale)
    value: Tensor = turned.meta["val"]
    made = rewriter.insert(
        turned, Attention(scale, causal), *operands, val=value.new_empty(value.shape)
    )
    turned.replace_all_uses_with(made)
    # PyTorch marks it as random, so no elimination of unread nodes would take it out.
    for one in (turned, node):
        rewriter.module.graph.erase_node(one)


def _unrepeated(node: Node) -> Node:
    """Return the keys or values that a reshape of an expansion repeats; other nodes unchanged."""
    expanded = node.args[0] if node.target is aten.reshape.default else None
    if not isinstance(expanded, Node) or expanded.target is not aten.expand.default:
        return node
    apart = expanded.args[0]
    if not isinstance(apart, Node) or apart.target is not aten.unsqueeze.default:
        return node
    given, axis = apart.args[0], apart.args[1]
    if axis != 2 or not is_plain(given, 4, MULTIPLIED):
        return node
    batch, heads, tokens, size = shape_of(given)
    times = shape_of(expanded)[2]
    right = shape_of(expanded) == (batch, heads, times, tokens, size)
    same = shape_of(node) == (batch, heads * times, tokens, size)
    return given if right and same else node  # type: ignore[return-value]  # a node: it is plain


def _added(mask: Node) -> Node | None:
    """Return a mask as float32 to add; None if PyTorch would refuse the mask."""
    value = value_of(mask)
    if value is None or value.device.type != "cpu" or value.layout is not torch.strided:
        return None
    if value.dtype is torch.float32:
        return mask
    if value.dtype is torch.bool:
        widen: tuple[Any, ...] = aten.where.Scalar, 0.0, float("-inf")
    elif value.dtype in MULTIPLIED:
        widen = aten.to.dtype, torch.float32
    else:
        return None
    if "added" not in mask.meta:  # once for all layers
        with mask.graph.inserting_after(behind(mask)):
            made = mask.graph.call_function(widen[0], (mask, *widen[1:]))
        made.meta = {"val": value.new_empty(value.shape, dtype=torch.float32)}
        mask.meta["added"] = made
    added: Node = mask.meta["added"]
    return added
