"""Trace a model: a graph of PyTorch's operators for inputs of given shapes."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.nn.modules import activation
from torch.utils import _pytree as pytree

from bestof.errors import TorchError
from bestof.torch.plan.trace.eager_run import eager_outputs, first_line
from bestof.torch.plan.trace.mutation import UNSAFE
from bestof.torch.plan.trace.skipped_modules import mark_skipped
from bestof.torch.plan.trace.twin import state_of, twin_of
from bestof.torch.process.fork_lock import ForkLock

Values = Sequence[Any]


class _State:
    # PyTorch's tracers keep their state in the process: two threads at once would get errors.
    lock = ForkLock()


@dataclass(frozen=True, slots=True)
class Trace:
    """The operators that a model runs for inputs of given shapes.

    graph: one placeholder for each tensor of the flattened inputs, and one output, the tuple of the
    flattened outputs. Each node's `meta["val"]` describes its value, without data.
    structure: how outputs nest.
    """

    graph: GraphModule
    structure: Any


def trace(
    model: nn.Module, inputs: Values, spec: Any, known: str = "", grad: bool | None = None
) -> Trace:
    """Return the trace of a model for `inputs`: the leaves of (args, kwargs), nested as `spec`.

    grad: None for composite operators, which fusion recognises. True or False for the very
    operators that eager mode runs with gradients on or off: composite operators choose among them
    by strides, by whether a weight requires a gradient, and by whether gradients are on.

    torch.fx follows the operators, and evaluates conditions on shapes. If it cannot, torch.export
    reads the program. Tensors carry no data meanwhile: a model that branches on values gives a
    TorchError. If the model itself refuses the inputs, the TorchError says so; `known` describes
    inputs that work.
    """
    with _State.lock:
        return _trace(model, inputs, spec, known, grad)


def _trace(model: nn.Module, inputs: Values, spec: Any, known: str, grad: bool | None) -> Trace:
    try:
        return _by_fx(model, inputs, spec, grad)
    except TorchError:
        raise
    except Exception as by_fx:
        # Inputs that the model refuses are no limit of the tracer, and torch.export logs 100 lines.
        args, kwargs = pytree.tree_unflatten(list(inputs), spec)
        outputs, _ = eager_outputs(model, args, kwargs, known, bool(grad))
        _refuse_objects(model, (*inputs, *outputs), by_fx)
        try:
            return _by_export(model, inputs, spec, grad)
        except Exception as by_export:
            raise TorchError(
                f"optimize: {type(model).__name__} cannot be traced, neither by torch.fx "
                f"({first_line(by_fx)}) nor by torch.export ({first_line(by_export)}); optimise "
                "the parts of it that do not branch on the values of tensors"
            ) from by_fx


def _refuse_objects(model: nn.Module, values: Values, cause: Exception) -> None:
    """Raise TorchError if the model takes or returns an object that no tracer can follow.

    Models of transformers return their cache, unless `config.use_cache` is False.
    """
    plain = Tensor | bool | int | float | complex | str | torch.dtype | torch.device | None
    found = next((one for one in values if not isinstance(one, plain)), None)
    if found is None:
        return
    holders = [
        f"model.{name}" if name else "model"
        for name, module in model.named_modules()
        if getattr(getattr(module, "config", None), "use_cache", None) is True
    ]
    remedy = (
        f"set {holders[0]}.config.use_cache = False"
        if holders
        else "let the model take and return tensors, numbers, tuples, lists and dicts only"
    )
    raise TorchError(
        f"optimize: {type(model).__name__} takes or returns an object of {type(found).__name__}, "
        f"which a plan cannot hold: {remedy}"
    ) from cause


def _by_fx(model: nn.Module, inputs: Values, spec: Any, grad: bool | None) -> Trace:
    composite = grad is None
    structures: list[Any] = []
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    twin = twin_of(model)
    if composite:
        mark_skipped(twin)
    state = list(
        {id(one): one for module in twin.modules() for one in state_of(module).values()}.values()
    )

    def run(*given: Tensor) -> tuple[Any, ...]:
        _put(
            twin,
            {id(one): stand_in for one, stand_in in zip(state, given[len(tensors) :], strict=True)},
        )
        remaining = iter(given)
        leaves = [next(remaining) if isinstance(value, Tensor) else value for value in inputs]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        with nullcontext() if composite else _fast_paths():
            outputs, structure = pytree.tree_flatten(twin(*args, **kwargs))
        structures.append(structure)
        return tuple(outputs)

    with (
        torch.set_grad_enabled(bool(grad)),
        silent("torch._subclasses.fake_tensor"),
        preserve_node_meta(),
    ):
        tracer = make_fx(
            run, tracing_mode="fake", pre_dispatch=composite, _allow_non_fake_inputs=True
        )
        stand_ins = [one.detach() if composite else one for one in state]
        graph = tracer(*(tensor.detach() for tensor in tensors), *stand_ins)
    _make_attributes(graph, len(tensors), state)
    if not composite:
        _drop_detached(graph)
        _compose_norms(graph)
    return Trace(graph, structures[-1])


@contextmanager
def _fast_paths() -> Iterator[None]:
    """Let PyTorch's layers of transformers take the operators that they take in eager mode.

    These layers look for tracers: for functions that intercept calls, and for make_fx by a
    function of their own. Any thread may replace this function, since only this thread is
    followed.
    """
    is_traced = activation._is_make_fx_tracing
    activation._is_make_fx_tracing = lambda: False
    try:
        with torch._C.DisableTorchFunction():
            yield
    finally:
        activation._is_make_fx_tracing = is_traced


def _drop_detached(traced: GraphModule) -> None:
    """Drop the values that autograd would have kept for a backward pass."""
    for node in reversed(traced.graph.nodes):
        if node.target is torch.ops.aten.detach.default and not node.users:
            traced.graph.erase_node(node)


def _compose_norms(traced: GraphModule) -> None:
    """Replace batch norms by the operator that checks its operands, and runs the same kernel."""
    aten = torch.ops.aten
    for node in traced.graph.nodes:
        if node.target is not aten.native_batch_norm.default:
            continue
        parts = [one for one in node.users if one.target is operator.getitem]
        used = [one for one in parts if one.users or one.args[1] == 0]
        if len(parts) != len(node.users) or [one.args[1] for one in used] != [0]:
            continue
        with traced.graph.inserting_before(node):
            norm = traced.graph.call_function(aten.batch_norm.default, (*node.args, False))
        norm.meta = used[0].meta
        used[0].replace_all_uses_with(norm)
        for one in (*parts, node):
            traced.graph.erase_node(one)
    traced.recompile()


def _put(model: nn.Module, stand_ins: dict[int, Tensor]) -> None:
    """Replace parameters and buffers by stand-ins, which tracing may change."""
    for module in model.modules():
        for own in (module._parameters, module._buffers):
            for name, one in own.items():
                if one is not None:
                    own[name] = stand_ins[id(one)]  # type: ignore[assignment]


def _make_attributes(traced: GraphModule, first: int, state: Sequence[Tensor]) -> None:
    """Turn the placeholders of parameters and buffers into attributes: the model's own tensors."""
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    for position, (node, one) in enumerate(zip(placeholders[first:], state, strict=True)):
        name = f"_state_{position}"
        if isinstance(one, nn.Parameter):
            traced.register_parameter(name, one)
        else:
            traced.register_buffer(name, one)
        with traced.graph.inserting_before(node):
            attribute = traced.graph.get_attr(name)
        attribute.meta = node.meta
        node.replace_all_uses_with(attribute)
        traced.graph.erase_node(node)
        if not attribute.users:
            traced.graph.erase_node(attribute)
    traced.recompile()


def _by_export(model: nn.Module, inputs: Values, spec: Any, grad: bool | None) -> Trace:
    args, kwargs = pytree.tree_unflatten(list(inputs), spec)
    with silent("torch.export._trace"), silent("torch._subclasses.fake_tensor"):
        exported = torch.export.export(model, args, kwargs, strict=True).module(check_guards=False)
    return _by_fx(exported, inputs, spec, grad)


def without_mutation(traced: Trace, keeps_views: bool = False) -> Trace:
    """Return the same computation by operators that change no argument.

    keeps_views: views stay views, with their strides, which some kernels are chosen by.
    """
    remove = "mutations" if keeps_views else "mutations_and_views"
    for node in traced.graph.graph.nodes if keeps_views else ():
        node.target = UNSAFE.get(node.target, node.target)
    placeholders = [
        node.meta["val"] for node in traced.graph.graph.nodes if node.op == "placeholder"
    ]
    with _State.lock, torch.no_grad():
        run = Interpreter(traced.graph).run  # new nodes keep the marks of skipped modules
        functional = torch.func.functionalize(run, remove=remove)
        fakes = placeholders[0].fake_mode if placeholders else torch._subclasses.FakeTensorMode()
        with fakes, preserve_node_meta():
            tracer = make_fx(functional, tracing_mode="real", _allow_non_fake_inputs=True)
            return Trace(tracer(*placeholders), traced.structure)


@contextmanager
def silent(name: str) -> Any:
    """Silence a logger's lines about failing operators, which the error repeats."""
    logger = logging.getLogger(name)
    was = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = was
