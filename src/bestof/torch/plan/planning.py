"""Make the program of a model for inputs of given shapes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from bestof.accuracy import Accuracy
from bestof.errors import TorchError
from bestof.torch.plan.fusion.by_row import choose_rows
from bestof.torch.plan.fusion.fused import drop_unread_attributes, fuse
from bestof.torch.plan.fusion.layouts import bring_into_rows
from bestof.torch.plan.operations.rewriter import Weights
from bestof.torch.plan.run.plan_bytes import model_bytes, peak_of_values
from bestof.torch.plan.run.program import Planned, Program
from bestof.torch.plan.trace.mutation import AliasedMutation, refuse_state, remove_mutation
from bestof.torch.plan.trace.skipped_modules import tell_unmarked
from bestof.torch.plan.trace.traced import Trace, trace, without_mutation
from bestof.torch.plan.trace.updates import update_in_place


def plan_inputs(
    model: nn.Module,
    leaves: list[Any],
    spec: Any,
    weights: Weights,
    accuracy: Accuracy,
    pure: bool,
    known: str,
    joins: bool,
    grad: bool | None,
) -> Planned:
    """Return the program of a model for inputs like these.

    The model is traced; changes of its values become new values; operators are fused (unless the
    accuracy is "exact"); values get their layouts. `weights` holds the layers of earlier shapes.
    pure: refuse models that change their inputs. known: describes inputs planned before.
    joins: products of the same value may become one.
    grad: whether gradients are on, where the accuracy is "exact"; else None.
    """
    traced = trace(model, leaves, spec, known, grad)
    _refuse_unknown_shapes(traced.graph.graph, model)
    if accuracy != "exact":
        tell_unmarked(traced.graph.graph, model)
    eager_bytes = model_bytes(model) + peak_of_values(traced.graph.graph)
    traced = _without_changes(traced, model, leaves, spec, pure, grad, accuracy == "exact")
    refuse_state(traced.graph.graph)
    if accuracy != "exact":
        fuse(traced.graph, weights, joins)
        bring_into_rows(traced.graph)
        choose_rows(traced.graph.graph, accuracy)
    update_in_place(traced.graph.graph)
    drop_unread_attributes(traced.graph)
    program = Program(traced.graph, accuracy, eager_bytes)
    kept = [
        torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
        if isinstance(leaf, Tensor)
        else leaf
        for leaf in leaves
    ]
    return Planned(kept, spec, program, traced.structure, grad)


def _refuse_unknown_shapes(graph: Graph, model: nn.Module) -> None:
    """Raise TorchError if a shape or a number is known only when the model runs."""
    for node in graph.nodes:
        if any(map(_is_unknown, pytree.tree_leaves(node.meta.get("val")))):
            raise TorchError(
                f"optimize: {type(model).__name__} runs {node.target}, and the shape or number "
                "that it returns depends on the values of tensors; a plan needs fixed shapes: "
                "optimise the parts of the model before and behind it"
            )


def _is_unknown(value: Any) -> bool:
    symbols = torch.SymInt, torch.SymFloat, torch.SymBool
    extents = value.shape if isinstance(value, Tensor) else (value,)
    return any(isinstance(one, symbols) for one in extents)


def _output(graph: Graph) -> Node:
    output: Node = next(iter(reversed(graph.nodes)))
    return output


def _without_changes(
    traced: Trace,
    model: nn.Module,
    leaves: list[Any],
    spec: Any,
    pure: bool,
    grad: bool | None,
    exact: bool,
) -> Trace:
    """Return the trace by operators that change none of their arguments.

    exact: values keep the strides that the model gives them, where it changes them.
    """
    try:
        changes_inputs = remove_mutation(traced.graph.graph, exact)
    except AliasedMutation:
        if pure:
            raise TorchError(
                "optimize: the model changes a view, perhaps of its inputs; a plan never does"
            ) from None
        again = trace(model, leaves, spec, grad=grad)
        pure_trace = without_mutation(again, exact)
        # Views have become copies, whose strides are not those of the model's outputs.
        _output(pure_trace.graph.graph).meta["val"] = [
            one.meta["val"] if isinstance(one, Node) else None
            for one in _output(again.graph.graph).args[0]  # type: ignore[union-attr]
        ]
        return pure_trace
    if pure and changes_inputs:
        raise TorchError("optimize: the model changes its inputs, which a plan never does")
    return traced
