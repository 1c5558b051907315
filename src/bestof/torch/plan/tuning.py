"""Decisions for all convolutions of a program at once, before the first request."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from bestof.torch.plan.convolution_step import ConvolutionStep
from bestof.torch.plan.program import Binding, Program
from bestof.torch.plan.selection import PYTORCH, applicable

_MOST_RUNS = 1000

# Of packed weights of the layers that race at once, by an estimate of twice the weight for each algorithm: F(6) takes
# seven times as much, F(4) four, most others as much.
_RACED_BYTES = 2**29


def return_freed_memory() -> None:
    """Hand what tuning has allocated and freed back to the system, where its C library can.

    Measured on ResNet34: 107 MB of 714, which the allocator would have kept between the packed weights.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def tune(program: Program, inputs: Sequence[Tensor]) -> None:
    """Race the algorithms of all layers in the running program, one layer of each problem.

    There weights are as cold, and values as warm, as they will be. Alone, with caches swept before each trial, F(4) on
    128 channels @28 took 0.73 ms and lost to F(2) with 0.70; in ResNet34 they take 0.33 and 0.50.
    """
    binding = program.borrow()
    try:
        with torch.no_grad():
            for heat in _heats(binding):
                runs = _runs(binding, heat)
                for turn in range(_MOST_RUNS):
                    binding.slots[: len(inputs)] = list(inputs)
                    for run in runs:
                        run()
                    undecided = [one for one in heat if not one.learn()]
                    if not undecided:
                        break
                    if turn == 0:  # no earlier run has decided, nor an order
                        for one in undecided:
                            _prepare(one)
                else:
                    break  # by a policy that does not end its search within these calls
        binding.refresh()
    finally:
        program.give_back(binding)


def _heats(binding: Binding) -> Iterator[list[ConvolutionStep]]:
    """A layer of each problem that is not decided yet, so many at a time that memory holds their packed weights."""
    first: dict[object, ConvolutionStep] = {}
    for step in binding.steps:
        one = step.convolution
        if one is not None and not one.learn():
            first.setdefault(one.problem, one)
    heat: list[ConvolutionStep] = []
    taken = 0
    for one in first.values():
        size = 2 * len(applicable(one.problem)) * one.operation.weights.weight.nbytes
        if heat and taken + size > _RACED_BYTES:
            yield heat
            heat, taken = [], 0
        heat.append(one)
        taken += size
    if heat:
        yield heat


def _prepare(one: ConvolutionStep) -> None:
    """Pack the weights for all that races, which is no part of a call's time."""
    for algorithm in applicable(one.problem):
        with suppress(
            Exception
        ):  # it fails at its trial again, where the selector takes it out and says so
            one.runner(algorithm)


def _runs(binding: Binding, heat: Sequence[ConvolutionStep]) -> list[Callable[[], object]]:
    """What a call of the program is while these layers race: those still to come run as PyTorch does, unpacked."""
    runs = []
    for step in binding.steps:
        one = step.convolution
        if one is None:
            runs.append(step.run)
        elif not one.learn() and not any(one is other for other in heat):
            runs.append(one.runner(PYTORCH))
        else:
            runs.append(one.run)
    return runs
