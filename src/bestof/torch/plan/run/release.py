"""Free the weights that no planned shape reads any more."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.errors import TorchError
from bestof.torch.plan.layers.frozen_weights import FrozenWeights, Packed
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.convolution_step import ConvolutionStep


def release(programs: Sequence[Program]) -> None:
    """Free each weight that all steps of a plan read in other layouts.

    Raise TorchError, before anything is changed, if an algorithm is not chosen yet.
    """
    steps = [step for program in programs for step in _settled_steps(program)]
    users: dict[int, tuple[FrozenWeights, list[ConvolutionStep]]] = {}
    for step in steps:
        if step.algorithm is not None:
            step.choice.settle(step.algorithm)
        weights = step.layer.weights
        users.setdefault(id(weights), (weights, []))[1].append(step)
    for weights, readers in users.values():
        if all(step.packed for step in readers):
            packed: dict[int, Packed] = {id(one): one for step in readers for one in step.packed}
            weights.release(packed.values())
    for program in programs:
        program.bind_anew()


def _settled_steps(program: Program) -> list[ConvolutionStep]:
    binding = program.borrow()
    try:
        binding.refresh()
        if not binding.settled:
            raise TorchError(
                "release: algorithms for a planned shape are not chosen yet; call the plan some "
                "more with the shapes "
                "that it was planned for, or let optimize choose them (tune=True)"
            )
        return [step.convolution for step in binding.steps if step.convolution is not None]
    finally:
        program.give_back(binding)
