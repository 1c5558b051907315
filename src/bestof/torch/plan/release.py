"""Letting go of the weights that no planned shape reads any more."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.errors import TorchError
from bestof.torch.plan.convolution_step import ConvolutionStep
from bestof.torch.plan.frozen_weights import FrozenWeights, Packed
from bestof.torch.plan.program import Program


def release(programs: Sequence[Program]) -> None:
    """Fix what the programs of a plan have decided, and let go of each weight that all of them keep in other layouts.

    Raises TorchError, before anything is changed, where a step is not settled.
    """
    steps = [
        (program, name, step) for program in programs for name, step in _settled_steps(program)
    ]
    users: dict[int, tuple[FrozenWeights, list[ConvolutionStep]]] = {}
    for program, name, step in steps:
        assert step.algorithm is not None
        program.fixed[name] = step.algorithm
        weights = step.operation.weights
        users.setdefault(id(weights), (weights, []))[1].append(step)
    for weights, readers in users.values():
        if all(step.packed for step in readers):
            packed: dict[int, Packed] = {id(one): one for step in readers for one in step.packed}
            weights.release(packed.values())
    for program in programs:
        program.bind_anew()


def _settled_steps(program: Program) -> list[tuple[str, ConvolutionStep]]:
    binding = program.borrow()
    try:
        binding.refresh()
        if not binding.settled:
            raise TorchError(
                "release: algorithms for a planned shape are not chosen yet; call the plan some more with the shapes "
                "that it was planned for, or let optimize choose them (tune=True)"
            )
        return [
            (step.name, step.convolution) for step in binding.steps if step.convolution is not None
        ]
    finally:
        program.give_back(binding)
