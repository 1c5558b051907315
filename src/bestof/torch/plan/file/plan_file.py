"""Write and read plans: graphs as JSON, and tensors; no code."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bestof.accuracy import Accuracy, parse_accuracy
from bestof.errors import TorchError
from bestof.kernels import isa
from bestof.torch.backends.depends import DEPENDS
from bestof.torch.plan.file.container import Tensors, read, write
from bestof.torch.plan.file.graph import decoded_graph, encoded_graph
from bestof.torch.plan.file.values import decoded, encoded, memory_limit
from bestof.torch.plan.layers.frozen_weights import FrozenWeights, Norm
from bestof.torch.plan.layers.joined_weights import JoinedWeights
from bestof.torch.plan.lengths import Lengths
from bestof.torch.plan.operations.checks import expect, val
from bestof.torch.plan.padding import Padding
from bestof.torch.plan.run.program import Planned, Program
from bestof.torch.plan.trace.eager_run import first_line


class PlanFile(NamedTuple):
    """What a file holds. padding: None if inputs are not padded."""

    accuracy: Accuracy
    planned: list[Planned]
    padding: Padding | None


def write_plan(
    file: str | Path | BinaryIO,
    accuracy: str,
    planned: list[Planned],
    padding: Padding | None = None,
) -> None:
    """Write the planned shapes to a file.

    TorchError if an operator has no name that another process knows.
    """
    tensors = Tensors()
    weights = _Weights(tensors)
    programs = [
        {
            "inputs": [_encoded_leaf(leaf) for leaf in one.leaves],
            "spec": _encoded_structure(_filled(one.spec)),
            "structure": _encoded_structure(_filled(one.structure)),
            "nodes": encoded_graph(one.program, tensors, weights.number),
            "decisions": one.program.decisions(),
            "grad": one.grad,
        }
        for one in planned
    ]
    content = {
        "accuracy": accuracy,
        "host": _host(),
        "weights": weights.encoded,
        "programs": programs,
        "padding": None if padding is None else _encoded_padding(padding),
    }
    write(file, content, tensors.values)


def read_plan(file: str | Path | BinaryIO) -> PlanFile:
    """Return what a file holds.

    TorchError for files that are no plans, damaged, or of another version.
    """
    most = memory_limit()
    content, tensors = read(file, most)
    name = str(file) if isinstance(file, str | Path) else "the given file object"
    try:
        parse_accuracy(content["accuracy"], "accuracy")
        weights: list[FrozenWeights] = []
        for one in content["weights"]:
            weights.append(_decoded_weights(one, tensors, weights))
        here = content["host"] == _host()
        planned = []
        for one in content["programs"]:
            graph = decoded_graph(one["nodes"], tensors, weights, most)
            program = Program(graph, content["accuracy"])
            spec, structure = (
                pytree.tree_structure(_decoded_structure(one[part]))
                for part in ("spec", "structure")
            )
            leaves = [_decoded_leaf(leaf, most) for leaf in one["inputs"]]
            _check_program(program, leaves, spec.num_leaves, structure.num_leaves, most)
            if here:
                _check_decisions(program, one["decisions"])
                program.settle(one["decisions"])
            grad = one.get("grad")  # a file without the field serves both
            if grad not in (None, True, False):
                raise ValueError(f"grad is {grad!r}")
            planned.append(Planned(leaves, spec, program, structure, grad))
        padding = content.get("padding")  # a file of an earlier version has none
        if padding is not None:
            padding = _decoded_padding(padding, planned)
        return PlanFile(content["accuracy"], planned, padding)
    except Exception as error:
        raise TorchError(
            f"load: {name} holds a plan that cannot be read here: {first_line(error)}; "
            f"optimise the model again with PyTorch {torch.__version__}, and save it"
        ) from error


def _host() -> list[str]:
    """Return what decisions depend on."""
    return [platform.machine(), platform.processor(), isa(), *DEPENDS]


# Inputs: tensors, and other arguments of the model, which calls are compared with


def _encoded_leaf(leaf: Any) -> Any:
    return leaf if isinstance(leaf, str) else encoded(leaf)


def _decoded_leaf(one: Any, most: int) -> Any:
    leaf = one if isinstance(one, str) else decoded(one, {}, most)
    hash(leaf)  # TypeError for lists, which no input is
    return leaf


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


# How inputs are padded


def _encoded_padding(padding: Padding) -> dict[str, Any]:
    lengths = padding.lengths
    return {
        "most": lengths.most,
        "pad": [[name, number] for name, number in lengths.pad.items()],
        "axis": lengths.axis,
        "step": lengths.step,
        "axes": [list(one) for one in padding.axes],
    }


def _decoded_padding(one: dict[str, Any], planned: list[Planned]) -> Padding:
    lengths = Lengths(one["most"], dict(one["pad"]), one["axis"], one["step"])
    axes = tuple(tuple(axes) for axes in one["axes"])
    if any(len(axes) != each.structure.num_leaves for each in planned):
        raise ValueError("the results that are cut are not those of the plan")
    if not all(type(axis) is int and axis >= 0 for each in axes for axis in each):
        raise ValueError("an axis that is cut is no axis")
    return Padding(lengths, axes)


# Whether `optimize` could have made a program


def _check_program(
    program: Program, leaves: list[Any], arguments: int, outputs: int, most: int
) -> None:
    """Raise ValueError if a program does not fit its inputs, its outputs, or the memory.

    The nodes of the program are checked before, one by one. arguments, outputs: as many as nest.
    most: the bytes that the arena may take.
    """
    given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    same = program.nodes[: len(given)] == program.inputs and len(given) == len(program.inputs)
    expect(same and len(leaves) == arguments, "number of inputs")
    for leaf, node in zip(given, program.inputs, strict=True):
        alike = leaf.shape == val(node).shape and leaf.dtype is val(node).dtype
        expect(alike, f"input {node.name}")
    results: Any = program.output.args[0]
    expect(len(results) == outputs, "number of outputs")
    expect(4 * program.floats <= most, "the memory that is left")


def _check_decisions(program: Program, decisions: Any) -> None:
    """Raise ValueError if a decision names an unknown step, or an algorithm unfit for the step."""
    expect(isinstance(decisions, dict), "the table of decisions")
    names = {node.meta["name"] for node in program.choices}
    for name in decisions:
        expect(name in names, f"step {name!a}")
    for node, choice in program.choices.items():
        chosen = decisions.get(node.meta["name"])
        expect(chosen is None or isinstance(chosen, str), "an algorithm")
        expect(chosen is None or choice.can_run(chosen), f"algorithm {chosen!a}")


# Weights


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
