"""Decisions for all convolutions of a program at once, before the first request."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from bestof.torch.plan.convolution_step import ConvolutionStep
from bestof.torch.plan.program import Binding, Program
from bestof.torch.plan.selection import applicable, selector

_MOST_RUNS = 1000

# Of weights whose layers race at once: an algorithm's layout takes up to seven times as much, and there are a few.
_RACED_BYTES = 2**28


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
                for one in heat:
                    for algorithm in applicable(one.problem):
                        one.runner(algorithm)  # packs the weights, which is no part of a call's time
                for _ in range(_MOST_RUNS):
                    _run(binding, inputs, heat)
                    if all(one.learn() for one in heat):
                        break
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
        size = one.operation.weights.weight.nbytes
        if heat and taken + size > _RACED_BYTES:
            yield heat
            heat, taken = [], 0
        heat.append(one)
        taken += size
    if heat:
        yield heat


def _run(binding: Binding, inputs: Sequence[Tensor], heat: Sequence[ConvolutionStep]) -> None:
    """One call of the program: trials of those that race, what was decided, and else the first that applies."""
    binding.slots[: len(inputs)] = list(inputs)
    for step in binding.steps:
        one = step.convolution
        if one is None:
            step.run()
        elif one.learn():
            one.run()
        elif any(one is other for other in heat):
            selector()(one)
        else:
            one.runner(applicable(one.problem)[0])()
