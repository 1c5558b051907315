"""Choose the algorithms of all layers of a program at once, before the first request."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from bestof.progress import late_progress_bar
from bestof.selection.state.budget import lifted
from bestof.selection.state.registry import windows
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.binding import Binding
from bestof.torch.plan.steps.chosen_step import ChosenStep

_MOST_RUNS = 1000

# Seconds after which a terminal shows how far the choices are.
_SILENT = 1.0

# Of the packed weights of the layers that race at once.
_RACED_BYTES = 2**29


def return_freed_memory() -> None:
    """Return freed memory to the system, if the C library can.

    Measured after tuning ResNet34: 107 MB of 714, which lay between packed weights.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def tune(program: Program, inputs: Sequence[Tensor]) -> None:
    """Race the algorithms in the running program, for one layer of each problem.

    In the program, weights are as cold, and values as warm, as they will be. Alone, with caches
    swept before each trial, F(4) on 128 channels @28 took 0.73 ms and lost to F(2) with 0.70; in
    ResNet34 they take 0.33 and 0.50. The race runs at once, also where eager calls search in a
    window of steps only, and without a budget: calls that wait for one take time, too.
    """
    binding = program.borrow()
    try:
        with torch.no_grad(), lifted(), ExitStack() as opened:
            for window in windows():
                opened.enter_context(window.opened())
            tell = opened.enter_context(late_progress_bar(_SILENT))
            problems, done = len({one.problem for one in _open(binding)}), 0
            raced: list[ChosenStep] = []
            for heat in _heats(binding):
                runs = _runs(binding, heat)
                for turn in range(_MOST_RUNS):
                    binding.slots[: len(inputs)] = program.changed.copied(inputs)
                    for run in runs:
                        run()
                    undecided = [one for one in heat if not one.learn()]
                    decided = done + len(heat) - len(undecided)
                    tell(f"optimize: {decided} of {problems} choices made", decided, problems)
                    if not undecided:
                        break
                    if turn == 0:  # neither an earlier run nor an order has decided
                        for one in undecided:
                            one.prepare()
                else:
                    break  # the policy does not end its search within these calls
                done += len(heat)
                raced += heat
        binding.refresh()
        program.noisy_choices.note(raced)
    finally:
        program.give_back(binding)


def _heats(binding: Binding) -> Iterator[list[ChosenStep]]:
    """Yield one step of each open problem, as many at a time as memory holds packed weights of."""
    first: dict[object, ChosenStep] = {}
    for one in _open(binding):
        first.setdefault(one.problem, one)
    heat: list[ChosenStep] = []
    taken = 0
    for one in first.values():
        if heat and taken + one.raced_bytes > _RACED_BYTES:
            yield heat
            heat, taken = [], 0
        heat.append(one)
        taken += one.raced_bytes
    if heat:
        yield heat


def _open(binding: Binding) -> list[ChosenStep]:
    """Return the steps whose choice is open."""
    chosen = [step.chosen for step in binding.steps]
    return [one for one in chosen if one is not None and not one.learn()]


def _runs(binding: Binding, heat: Sequence[ChosenStep]) -> list[Callable[[], object]]:
    """Return the functions of a call while these layers race; later ones run by PyTorch."""
    runs = []
    for step in binding.steps:
        one = step.chosen
        if one is None:
            runs.append(step.run)
        elif not one.learn() and not any(one is other for other in heat):
            runs.append(one.runner(one.pytorch))
        else:
            runs.append(one.run)
    return runs
