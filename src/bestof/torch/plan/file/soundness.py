"""Checks that a program from a file is one that `optimize` could have made."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bestof.torch.plan.operations.checks import expect, val
from bestof.torch.plan.run.program import Program


def check_program(
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


def check_decisions(program: Program, decisions: Any) -> None:
    """Raise ValueError if a decision names an unknown step, or an algorithm unfit for the step."""
    expect(isinstance(decisions, dict), "the table of decisions")
    names = {node.meta["name"] for node in program.choices}
    for name in decisions:
        expect(name in names, f"step {name!a}")
    for node, choice in program.choices.items():
        chosen = decisions.get(node.meta["name"])
        expect(chosen is None or isinstance(chosen, str), "an algorithm")
        expect(chosen is None or choice.can_run(chosen), f"algorithm {chosen!a}")
