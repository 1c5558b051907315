"""Replace operators of a traced graph by operations of the plan."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from bestof.torch.plan.fusion.composites import unite
from bestof.torch.plan.fusion.excitations import unite_excitations
from bestof.torch.plan.fusion.frozen_norm import unite_frozen_norms
from bestof.torch.plan.fusion.joining import join_products
from bestof.torch.plan.fusion.left_out import is_left_to_pytorch, skipped_are_hidden
from bestof.torch.plan.fusion.parts import take_parts
from bestof.torch.plan.fusion.repeats import merge_repeats
from bestof.torch.plan.operations.checks import operation_of
from bestof.torch.plan.operations.inverted_residual import join_inverted_residuals
from bestof.torch.plan.operations.rewriter import Rewriter, Weights
from bestof.torch.plan.operations.table import RECOGNISERS
from bestof.torch.plan.trace.graph import argument, value_of
from bestof.torch.plan.trace.mutation import aliased_argument, root_of
from bestof.torch.plan.trace.strides import VIEWS, reads_strides

aten = torch.ops.aten


def fuse(module: GraphModule, weights: Weights, joins: bool = True) -> None:
    """Rewrite the graph of a trace in place.

    First every operation replaces the operators that it recognises, then each takes in the nodes
    that follow. `weights` holds the layers of earlier shapes, which share weights. joins: whether
    products of the same value may become one, which copies their weights.
    """
    with skipped_are_hidden(module.graph):
        _fuse(module, weights, joins)


def _fuse(module: GraphModule, weights: Weights, joins: bool) -> None:
    graph, rewriter = module.graph, Rewriter(module, weights)
    for node in list(graph.nodes):
        if node.target in VIEWS:
            # A view if strides allow it: the strides of a plan's values are its own.
            node.target = aten.reshape.default
        is_read = any(map(reads_strides, node.users)) or _keeps_output_apart(node)
        if _is_identity(node) and not is_read:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    take_parts(graph)
    merge_repeats(graph)
    unite(graph)
    unite_frozen_norms(graph)
    graph.eliminate_dead_code()
    unite_excitations(rewriter)
    graph.eliminate_dead_code()
    for node in list(graph.nodes):
        recognise = RECOGNISERS.get(node.target) if node.op == "call_function" else None
        if recognise is not None and not is_left_to_pytorch(node):
            recognise(rewriter, node)
    graph.eliminate_dead_code()
    for node in list(graph.nodes):
        operation = operation_of(node)
        if operation is not None and not node._erased:
            operation.absorb(rewriter, node)
    graph.eliminate_dead_code()
    join_inverted_residuals(rewriter)
    if joins:
        join_products(rewriter)


def drop_unread_attributes(module: GraphModule) -> None:
    """Drop the parameters and buffers that no node reads: operations hold what they need."""
    read = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    for own in (module._parameters, module._buffers):
        for name in list(own):
            if name not in read:
                del own[name]


def _keeps_output_apart(node: Node) -> bool:
    """Return whether an output of the model has memory of its own by this copy alone.

    Without the copy, a program that writes to the output would change its input, or a weight.
    """
    copies = node.target in _COPIES or (node.target in _TO and bool(argument(node, "copy")))
    source = node.args[0] if copies else None
    if not isinstance(source, Node) or root_of(source).op == "call_function":
        return False
    seen, found = set[Node](), [node]
    while found:
        one = found.pop()
        seen.add(one)
        for user in one.users:
            if user.op == "output":
                return True
            if user not in seen and (aliased_argument(user) is one or _is_identity(user)):
                found.append(user)
    return False


def _is_identity(node: Node) -> bool:
    if node.op != "call_function":
        return False
    target = node.target
    if target in _IDENTITIES:
        return True
    if target is aten.dropout.default or target is aten.feature_dropout.default:
        return not node.args[2]
    given, result = value_of(node.args[0] if node.args else None), value_of(node)
    if given is None or result is None:
        return False
    same = (
        given.shape == result.shape
        and given.dtype is result.dtype
        and given.device == result.device
    )
    return same and target in _IDENTITIES_OF_SHAPE


_TO = {aten.to.dtype, aten.to.device, aten.to.dtype_layout}
_COPIES = {aten.clone.default, aten.lift_fresh_copy.default, aten._to_copy.default}
# The graph is pure, and the plan chooses layouts: copies and aliases change nothing.
_IDENTITIES = {
    aten.detach.default,
    aten.alias.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.lift_fresh_copy.default,
}
_IDENTITIES_OF_SHAPE = {
    aten.adaptive_avg_pool2d.default,
    aten.adaptive_max_pool2d.default,
    aten._adaptive_avg_pool2d.default,
    *_TO,
    aten._to_copy.default,
    aten.expand.default,
    aten.flatten.using_ints,
    aten.view.default,
    aten.reshape.default,
}
