"""Checks that a program from a file is one that `optimize` could have made."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bestof.torch.plan.algorithms.table import algorithm
from bestof.torch.plan.mutation import changed_argument, root_of
from bestof.torch.plan.operations.checks import expect, operation_of, val
from bestof.torch.plan.program import Program
from bestof.torch.plan.raced_problem import ALTERNATIVES, RacedProblem


def check_program(program: Program, leaves: list[Any], outputs: int) -> None:
    """Raise ValueError if a program does not fit its inputs, its outputs, or itself."""
    given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    same = program.nodes[: len(given)] == program.inputs and len(given) == len(program.inputs)
    expect(same, "number of inputs")
    for leaf, node in zip(given, program.inputs, strict=True):
        alike = leaf.shape == val(node).shape and leaf.dtype is val(node).dtype
        expect(alike, f"input {node.name}")
    results: Any = program.output.args[0]
    expect(len(results) == outputs, "number of outputs")
    for node in program.nodes:
        operation = operation_of(node)
        if operation is not None:
            operation.check(node)
        changed = changed_argument(node)
        if changed is not None:
            expect(root_of(changed) in program.inputs, f"what {node.name} changes")


def check_decisions(program: Program, decisions: dict[str, str]) -> None:
    """Raise ValueError if a decision names an unknown step, or an algorithm that cannot run it."""
    problems = {node.meta["name"]: choice.problem for node, choice in program.choices.items()}
    for name, chosen in decisions.items():
        expect(name in problems, f"step {name!r}")
        problem = problems[name]
        if isinstance(problem, RacedProblem):
            expect(chosen in ALTERNATIVES, f"alternative {chosen!r}")
            continue
        try:
            right = algorithm(chosen).can_run(problem)
        except KeyError:
            right = False
        expect(right, f"algorithm {chosen!r}")
