"""What a plan computes, and whether its results are the model's."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bestof.torch.plan.operations.checks import operation_of
from bestof.torch.plan.operations.linear import Linear
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.steps.raced_step import RacedProblem
from bestof.torch.plan.steps.row_step import RowProblem


def operations(plan: OptimizedModel, *inputs: Tensor) -> list[str]:
    """Return what a plan computes: operations by name, and PyTorch's operators."""
    leaves, spec = pytree.tree_flatten((inputs, {}))
    program, _ = plan.program(leaves, spec)
    found = []
    for node in program.nodes:
        operation = operation_of(node)
        if isinstance(operation, Linear):
            residual = len(node.args) > 1 and not operation.gated
            words = [operation.name, operation.layer.activation, "residual" * residual]
            found.append(" ".join(filter(None, words)))
        elif node.op == "call_function":
            found.append(str(node.target) if operation is None else operation.name)
    return found


def is_close(plan: Any, model: nn.Module, *inputs: Tensor) -> bool:
    """Compare with the model in float64, relative to the size of the results.

    Each of some ten steps errs by less than 16 units, on values of about one size.
    """
    with torch.no_grad():
        got = plan(*inputs)
        exact = copy.deepcopy(model).double()
        right = exact(*(x.double() if x.is_floating_point() else x for x in inputs))
    eps = float(torch.finfo(torch.float32).eps)
    error = torch.linalg.vector_norm(got - right)
    return bool(error <= 160 * eps * torch.linalg.vector_norm(right))


def chosen_by(plan: OptimizedModel, name: str, *inputs: Tensor) -> OptimizedModel:
    """Let PyTorch, or the native kernels, run all steps that both can run."""
    leaves, spec = pytree.tree_flatten((inputs, {}))
    program, _ = plan.program(leaves, spec)
    for choice in program.choices.values():
        if isinstance(choice.problem, RacedProblem):
            choice.settle(name)
        elif isinstance(choice.problem, RowProblem):
            choice.settle("as is" if name == "pytorch" else name)
    program.bind_anew()
    return plan
