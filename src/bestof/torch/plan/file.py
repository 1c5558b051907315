"""Write and read plans: graphs as JSON, and tensors; no code."""

from __future__ import annotations

import operator
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from bestof.accuracy import Accuracy, parse_accuracy
from bestof.errors import TorchError
from bestof.kernels import isa
from bestof.torch.depends import DEPENDS
from bestof.torch.plan.container import Tensors, read, write
from bestof.torch.plan.eager_run import first_line
from bestof.torch.plan.frozen_weights import FrozenWeights, Norm
from bestof.torch.plan.graph import fused
from bestof.torch.plan.joined_weights import JoinedWeights
from bestof.torch.plan.operations.checks import operation_of
from bestof.torch.plan.operations.table import decode_operation
from bestof.torch.plan.planned import Planned
from bestof.torch.plan.program import Program
from bestof.torch.plan.soundness import check_decisions, check_program
from bestof.torch.plan.updates import WRITING

_FUNCTIONS: dict[str, Any] = {"bestof.fused": fused, "operator.getitem": operator.getitem}
_NAMES = {target: name for name, target in _FUNCTIONS.items()}

_UNCHECKED = (
    *("_backward", "_convert_indices", "_reshape_alias"),
    *("ctc_loss", "segment_reduce"),
)
"""Parts of the names of operators that read or write outside of their tensors for wild sizes or
indices: PyTorch 2.13 ends by a segmentation fault. Inference needs none of them."""


def write_plan(file: str | Path | BinaryIO, accuracy: str, planned: list[Planned]) -> None:
    """Write the planned shapes to a file.

    TorchError if an operator has no name that another process knows.
    """
    tensors = Tensors()
    weights = _Weights(tensors)
    programs = [
        {
            "inputs": [_encoded(leaf) for leaf in leaves],
            "spec": _encoded_structure(_filled(spec)),
            "structure": _encoded_structure(_filled(structure)),
            "nodes": _encoded_graph(program, tensors, weights.number),
            "decisions": program.decisions(),
        }
        for leaves, spec, program, structure in planned
    ]
    content = {
        "accuracy": accuracy,
        "host": _host(),
        "weights": weights.encoded,
        "programs": programs,
    }
    write(file, content, tensors.values)


def read_plan(file: str | Path | BinaryIO) -> tuple[Accuracy, list[Planned]]:
    """Return (accuracy, the planned shapes) of a file.

    TorchError for files that are no plans, damaged, or of another version.
    """
    content, tensors = read(file)
    name = str(file) if isinstance(file, str | Path) else "the given file object"
    try:
        parse_accuracy(content["accuracy"], "accuracy")
        weights: list[FrozenWeights] = []
        for one in content["weights"]:
            weights.append(_decoded_weights(one, tensors, weights))
        here = content["host"] == _host()
        planned = []
        for one in content["programs"]:
            program = Program(_decoded_graph(one["nodes"], tensors, weights), content["accuracy"])
            spec, structure = (
                pytree.tree_structure(_decoded_structure(one[part]))
                for part in ("spec", "structure")
            )
            leaves = [_decoded(leaf, {}) for leaf in one["inputs"]]
            check_program(program, leaves, structure.num_leaves)
            if here:
                check_decisions(program, one["decisions"])
                program.settle(one["decisions"])
            planned.append(Planned(leaves, spec, program, structure))
        return content["accuracy"], planned
    except Exception as error:
        raise TorchError(
            f"load: {name} holds a plan that cannot be read here: {first_line(error)}; "
            f"optimise the model again with PyTorch {torch.__version__}, and save it"
        ) from error


def _host() -> list[str]:
    """Return what decisions depend on."""
    return [platform.machine(), platform.processor(), isa(), *DEPENDS]


# How inputs and outputs nest: tuples, lists and dicts, which need no code to be read


def _filled(spec: Any) -> Any:
    return pytree.tree_unflatten([None] * spec.num_leaves, spec)


def _encoded_structure(value: Any) -> Any:
    if value is None:
        return None
    if type(value) in (tuple, list):
        return [type(value).__name__, [_encoded_structure(one) for one in value]]
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return ["dict", [[key, _encoded_structure(one)] for key, one in value.items()]]
    raise TorchError(
        f"save: the inputs or outputs nest in a {type(value).__name__}; a file holds tuples, "
        "lists, and dicts whose keys are texts: let the model return one of these"
    )


def _decoded_structure(encoded: Any) -> Any:
    if encoded is None:
        return None
    kind, content = encoded
    if kind == "dict":
        return {str(key): _decoded_structure(one) for key, one in content}
    return {"tuple": tuple, "list": list}[kind](_decoded_structure(one) for one in content)


# Graphs


class _Weights:
    """The distinct weights of a plan, by number."""

    def __init__(self, tensors: Tensors) -> None:
        self.encoded: list[dict[str, Any]] = []
        self._tensors = tensors
        self._numbers: dict[int, int] = {}

    def number(self, frozen: FrozenWeights) -> int:
        """Return the number of weights, which become part of the file."""
        if id(frozen) not in self._numbers:
            frozen.check()
            encoded = self._encoded(frozen)  # the parts of joined weights come first
            self._numbers[id(frozen)] = len(self.encoded)
            self.encoded.append(encoded)
        return self._numbers[id(frozen)]

    def _encoded(self, frozen: FrozenWeights) -> dict[str, Any]:
        if isinstance(frozen, JoinedWeights):
            return {"joined": [self.number(part) for part in frozen.parts]}
        number, norm = self._tensors.number, frozen.norm
        return {
            "weight": number(frozen.weight),
            "bias": number(frozen.own_bias),
            "norm": None if norm is None else [*map(number, norm[:4]), norm.eps],
            "groups": frozen.groups,
        }


def _encoded_graph(
    program: Program, tensors: Tensors, number: Callable[[FrozenWeights], int]
) -> list[dict[str, Any]]:
    nodes = []
    for node in [*program.nodes, program.output]:
        one: dict[str, Any] = {"op": node.op, "name": node.name}
        if node.op == "get_attr":
            one["tensor"] = tensors.number(program.attribute(node))
        else:
            if node.op == "call_function":
                one["target"] = _name_of(node.target)
            one["args"], one["kwargs"] = _encoded(node.args), _encoded(node.kwargs)
        one["val"] = _encoded(node.meta.get("val"))
        operation = operation_of(node)
        if operation is not None:
            one["operation"] = operation.encode(number)
            one["label"] = node.meta.get("name", node.name)
        nodes.append(one)
    return nodes


def _decoded_weights(
    one: dict[str, Any], tensors: list[Tensor], earlier: list[FrozenWeights]
) -> FrozenWeights:
    if "joined" in one:
        return JoinedWeights([earlier[number] for number in one["joined"]])

    def tensor(number: int | None) -> Any:
        return None if number is None else tensors[number]

    norm = None
    if one["norm"] is not None:
        *numbers, eps = one["norm"]
        mean, variance, scale, shift = map(tensor, numbers)
        norm = Norm(mean, variance, scale, shift, eps)
    return FrozenWeights(tensor(one["weight"]), tensor(one["bias"]), norm, one["groups"])


def _decoded_graph(
    nodes: list[dict[str, Any]], tensors: list[Tensor], weights: list[FrozenWeights]
) -> GraphModule:
    graph, root = Graph(), nn.Module()
    known: dict[str, Node] = {}
    for one in nodes:
        name, op = one["name"], one["op"]
        if op not in ("placeholder", "get_attr", "call_function", "output"):
            raise ValueError(f"{op} is no node of a plan")
        if op == "get_attr":
            root.register_buffer(name, tensors[one["tensor"]])
            node = graph.create_node("get_attr", name, name=name)
        else:
            target = _target_of(one["target"]) if op == "call_function" else name
            args, kwargs = _decoded(one["args"], known), _decoded(one["kwargs"], known)
            node = graph.create_node(op, target, tuple(args), kwargs, name=name)
        node.meta = {"val": _decoded(one["val"], known)}
        if (node.target is fused) != (one.get("operation", {}).get("name", "written") != "written"):
            raise ValueError(f"{name} is computed by another operation than it says")
        if "operation" in one:
            operation = decode_operation(one["operation"], weights)
            node.meta |= {"operation": operation, "name": one["label"]}
        known[name] = node
    return GraphModule(root, graph)


def _name_of(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload) and _may_be_named(target):
        return str(target)
    if target not in _NAMES:
        raise TorchError(
            f"save: the plan calls {target!r}, which a file cannot name: it may name PyTorch's own "
            "operators"
        )
    return _NAMES[target]


def _target_of(name: str) -> Any:
    """Return an operator of PyTorch that computes, or a function that plans use.

    A file cannot name any other code.
    """
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    namespace, packet, overload = name.split(".")
    target = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    if not isinstance(target, torch._ops.OpOverload) or not _may_be_named(target):
        raise TypeError(f"{name} is no operator that a plan may hold")
    return target


def _may_be_named(target: torch._ops.OpOverload) -> bool:
    """Return whether an operator only computes a value from others, or writes to its argument.

    Only few operators may write: `check_program` checks that they write to an input. Operators must
    not use files, or take sizes or indices without a check.
    """
    name = target._schema.name
    return (
        target.namespace == "aten"
        and (target in WRITING or not target._schema.is_mutable)
        and "file" not in name
        and not ("sparse" in name and "unsafe" in name)
        and not any(part in name for part in _UNCHECKED)
    )


# Arguments and the descriptions of tensors, as JSON


def _encoded(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Node):
        return {"node": value.name}
    if isinstance(value, list | tuple):
        return [_encoded(one) for one in value]
    if isinstance(value, dict):
        return {"dict": {key: _encoded(one) for key, one in value.items()}}
    if isinstance(value, Tensor):
        described = list(value.shape), list(value.stride()), str(value.dtype)
        return {"tensor": described}
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    raise TorchError(
        f"save: a {type(value).__name__} among the arguments of an operator cannot be saved"
    )


def _decoded(value: Any, known: dict[str, Node]) -> Any:
    if isinstance(value, list):
        return [_decoded(one, known) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "node":
        return known[content]
    if kind == "dict":
        return {key: _decoded(one, known) for key, one in content.items()}
    if kind == "complex":
        return complex(*content)
    if kind == "device":
        return torch.device(content)
    if kind == "tensor":
        shape, strides, dtype = content
        return torch.empty_strided(
            shape, strides, dtype=_torch_constant(dtype.removeprefix("torch.")), device="meta"
        )
    return _torch_constant(content)


def _torch_constant(name: str) -> Any:
    value = getattr(torch, name)
    if not isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        raise TypeError(f"torch.{name} is no constant")
    return value
