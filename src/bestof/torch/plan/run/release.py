"""Free the weights that no planned shape reads any more."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.errors import TorchError
from bestof.torch.plan.layers.frozen_weights import FrozenWeights, Packed
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.chosen_step import ChosenStep


def release(programs: Sequence[Program]) -> None:
    """Free each weight that all steps of a plan read in other layouts.

    A choice that is raced again keeps its first decision: beside busy neighbours, the race may wait
    for as long as they are busy. Raise TorchError, and change nothing, if an algorithm was never
    chosen.
    """
    closed: list[ChosenStep] = []
    try:
        steps = [step for program in programs for step in _settled_steps(program, closed)]
    except TorchError:
        for one in closed:
            one.choice.reopen()
        raise
    users: dict[int, tuple[FrozenWeights, list[tuple[Packed, ...]]]] = {}
    for step in steps:
        if step.algorithm is not None and step.reads:
            step.choice.settle(step.algorithm)
        for weights, held in () if step.running else step.reads:
            users.setdefault(id(weights), (weights, []))[1].append(held)
    for weights, readers in users.values():
        if all(readers):
            packed: dict[int, Packed] = {id(one): one for held in readers for one in held}
            weights.release(packed.values())
    for program in programs:
        program.bind_anew()


def _settled_steps(program: Program, closed: list[ChosenStep]) -> list[ChosenStep]:
    """Return the steps of a program; note those whose other race has ended here."""
    binding = program.borrow()
    try:
        for _ in range(2):  # blocks first, then the layers that turn out to run them
            closed += [one for one in binding.chosen if one.close()]
        binding.refresh()
        if not binding.settled:
            raise TorchError(
                "release: algorithms for a planned shape are not chosen yet; call the plan some "
                "more with the shapes that it was planned for, or let optimize choose them "
                "(tune=True)"
            )
        return binding.chosen
    finally:
        program.give_back(binding)
