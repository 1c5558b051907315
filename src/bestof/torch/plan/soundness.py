"""Whether a program that was read from a file is one that `optimize` could have made: kernels are given addresses."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from bestof.torch.plan.convolution_step import is_activation
from bestof.torch.plan.fusion import convolution, pooling
from bestof.torch.plan.operation import Convolution, Pooling
from bestof.torch.plan.program import Program
from bestof.torch.plan.selection import ONEDNN, PYTORCH, algorithms, is_allowed, native_name
from bestof.torch.plan.writing import columns, rows, writing_form


def check_program(program: Program, leaves: list[Any], outputs: int) -> None:
    """Raise ValueError where the inputs differ from `leaves`, the outputs in number, or a step's shapes disagree."""
    given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    _expect(
        program.nodes[: len(given)] == program.inputs and len(given) == len(program.inputs),
        "number of inputs",
    )
    for leaf, node in zip(given, program.inputs, strict=True):
        _expect(
            leaf.shape == _val(node).shape and leaf.dtype is _val(node).dtype, f"input {node.name}"
        )
    _expect(len(program.output.args[0]) == outputs, "number of outputs")  # type: ignore[arg-type]
    for node in program.nodes:
        if node.target is convolution:
            _check_convolution(node)
        elif node.target is pooling:
            _check_pooling(node)
        elif node.target is rows:
            _expect(_is_rows(node) and _val(node.args[0]).shape == _val(node).shape, node.name)
        elif node.target is columns:
            given = node.args[0]
            _expect(_is_rows(given) and not node.meta["rows"] and _is_alike(node, given), node.name)
        elif writing_form(node) is not None:
            target: Any = node.target
            found = target(*_values(node.args), **_values(node.kwargs))
            _expect(
                _is_rows(node) and found.shape == _val(node).shape and found.dtype is torch.float32,
                node.name,
            )


def check_decisions(program: Program, decisions: dict[str, str]) -> None:
    """Raise ValueError where a decision is of no step of the program, or for what cannot run the step."""
    steps = {node.meta["name"]: problem for node, problem in program.problems.items()}
    for name, algorithm in decisions.items():
        _expect(name in steps, f"step {name!r}")
        problem = steps[name]
        known = algorithm == PYTORCH or (algorithm == ONEDNN and not problem.linear)
        native = native_name(algorithm) in algorithms(problem.convolution) and is_allowed(
            problem, algorithm
        )
        _expect(known or native, f"algorithm {algorithm!r}")


def _check_convolution(node: Node) -> None:
    operation = node.meta["operation"]
    assert isinstance(operation, Convolution)
    weights, x, y = operation.weights, _val(node.args[0]), _val(node)
    weight = weights.weight
    _expect(
        weight.dim() == (2 if operation.linear else 4) and weight.dtype is torch.float32, "weight"
    )
    _expect(weights.groups == operation.groups, "groups")
    bias = weights.bias
    _expect(
        bias is None or (bias.shape == weight.shape[:1] and bias.dtype is torch.float32), "bias"
    )
    _expect(not operation.activation or is_activation(operation.activation), "activation")
    _expect(x.dtype is torch.float32 and y.dtype is torch.float32, node.name)
    if operation.linear:
        _expect(len(node.args) == 1 and not node.meta["rows"] and 0 not in x.shape, node.name)
        _expect(
            (*x.shape[:-1], weight.shape[0]) == tuple(y.shape) and x.shape[-1] == weight.shape[1],
            node.name,
        )
        return
    geometry = operation.stride, operation.padding, operation.dilation, operation.groups
    right = F.conv2d(x, weight.to("meta"), None, *geometry)
    _expect(_is_rows(node) and all(map(_is_rows, node.args)) and right.shape == y.shape, node.name)
    _expect(len(node.args) == 1 or _val(node.args[1]).shape == y.shape, node.name)


def _check_pooling(node: Node) -> None:
    pool, x = node.meta["operation"], _val(node.args[0])
    assert isinstance(pool, Pooling)
    right = F.avg_pool2d(x, pool.kernel, pool.stride, pool.padding)
    _expect(
        _is_rows(node) and _is_rows(node.args[0]) and right.shape == _val(node).shape, node.name
    )


def _is_rows(node: Any) -> bool:
    """Whether it is a value in channels last that lies in the arena."""
    planned = node.target in (convolution, pooling, rows) or writing_form(node) is not None
    value = _val(node)
    return (
        planned and node.meta["rows"] is True and value.dim() == 4 and value.dtype is torch.float32
    )


def _is_alike(one: Node, other: Any) -> bool:
    return _val(one).shape == _val(other).shape and _val(one).dtype is _val(other).dtype


def _val(node: Any) -> Tensor:
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, Tensor):
        raise ValueError("a step does not read a tensor where it should")
    return value


def _values(value: Any) -> Any:
    if isinstance(value, Node):
        return _val(value)
    if isinstance(value, list | tuple):
        return [_values(one) for one in value]
    return {name: _values(one) for name, one in value.items()} if isinstance(value, dict) else value


def _expect(right: bool, what: str) -> None:
    if not right:
        raise ValueError(f"{what} does not fit the rest of the plan")
