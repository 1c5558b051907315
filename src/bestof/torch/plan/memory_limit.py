"""Algorithms of a tuned program such that its weights, in whatever layout, take no more than a limit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from bestof.torch.plan.convolution_step import ConvolutionStep
from bestof.torch.plan.memory import memory_of
from bestof.torch.plan.program import Program
from bestof.torch.plan.selection import ONEDNN, PYTORCH, UNPACKED, packs, selector

_TRIALS = 3


@dataclass(slots=True)
class _Layer:
    """The steps that run with the same weights; seconds and bytes of every algorithm that all of them were tried by."""

    steps: list[tuple[str, ConvolutionStep]]
    options: dict[str, tuple[float, int]]
    chosen: str

    @property
    def cost(self) -> tuple[float, int]:
        return self.options[self.chosen]


def limit_memory(program: Program, limit: int) -> None:
    """Settle a tuned program so that it takes no more than `limit` bytes once it is released, or as few as it can.

    Layers give up speed where that costs least for each byte: to an algorithm with smaller weights, or to the same one
    on weights as they are, transformed at each call. Measured on VGG16, one image: F(4) takes 252 MB packed and 52 ms,
    unpacked 59 MB and 67 ms; the best of those that transform no weights takes 59 MB and 120 ms.
    """
    beyond = memory_of(program, 0).own - limit
    binding = program.borrow()
    try:
        layers = _layers(
            [
                (step.name, step.convolution)
                for step in binding.steps
                if step.convolution is not None
            ]
        )
        while beyond > 0:
            swaps = [swap for layer in layers if (swap := _cheapest_swap(layer)) is not None]
            if not swaps:
                break
            _, layer, name = min(swaps, key=lambda swap: swap[0])
            beyond -= layer.cost[1] - layer.options[name][1]
            layer.chosen = name
        for layer in layers:
            layer.steps[0][1].operation.weights.only = layer.chosen
            for name, step in layer.steps:
                step.settle(layer.chosen)
                program.fixed[name] = layer.chosen
    finally:
        binding.refresh()
        program.give_back(binding)


def _layers(steps: list[tuple[str, ConvolutionStep]]) -> list[_Layer]:
    alike: dict[int, list[tuple[str, ConvolutionStep]]] = {}
    for name, step in steps:
        alike.setdefault(id(step.operation.weights), []).append((name, step))
    found = []
    for group in alike.values():
        choices = [_options(step) for _, step in group]
        shared = set(choices[0]).intersection(*choices[1:])
        options = {
            name: (sum(one[name][0] for one in choices), choices[0][name][1]) for name in shared
        }
        chosen = [step.algorithm for _, step in group if step.algorithm is not None]
        fastest = min(options, key=lambda name: options[name][0])
        found.append(
            _Layer(group, options, chosen[0] if chosen and chosen[0] in options else fastest)
        )
    return found


def _options(step: ConvolutionStep) -> dict[str, tuple[float, int]]:
    """Seconds and bytes of the algorithms that the selector has timed, and of the chosen one without packing."""
    rows = selector().explain(step).alternatives
    options = {
        row.name: (row.seconds, _bytes(step, row.name)) for row in rows if row.seconds is not None
    }
    chosen = step.algorithm
    if chosen is not None and chosen not in options:  # the only one, or ordered: nothing was timed
        options[chosen] = 0.0, _bytes(step, chosen)
    problem = step.problem
    if (
        chosen not in (None, ONEDNN, PYTORCH)
        and not problem.linear
        and packs(problem.convolution, chosen)
    ):
        name = f"{chosen}{UNPACKED}"
        # Both alone, where all takes longer than in the running program, whose seconds the others have.
        more = _seconds(step, name) - _seconds(step, chosen)
        options[name] = options[chosen][0] + max(more, 0.0), _bytes(step, name)
    return options


def _bytes(step: ConvolutionStep, algorithm: str) -> int:
    """What is kept of the weights by an algorithm: packed to see, and freed again unless it is the chosen one."""
    weights, operation = step.operation.weights, step.operation
    if algorithm == ONEDNN:
        assert isinstance(step.x, Tensor)
        geometry = operation.padding, operation.stride, operation.dilation, operation.groups
        return weights.onednn(*geometry, list(step.x.shape)).nbytes
    if algorithm == PYTORCH or not packs(step.problem.convolution, algorithm):
        return weights.weight.nbytes
    return weights.packed(algorithm).nbytes


def _seconds(step: ConvolutionStep, algorithm: str) -> float:
    run, sweep = step.runner(algorithm), torch.zeros(2**24)
    times = []
    for _ in range(_TRIALS):
        sweep.add_(1.0)  # weights come from memory, as in a running network
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return median(times)


def _cheapest_swap(layer: _Layer) -> tuple[float, _Layer, str] | None:
    """The algorithm with less memory that costs the fewest seconds for each byte it saves."""
    seconds, size = layer.cost
    swaps = [
        ((other - seconds) / (size - smaller), layer, name)
        for name, (other, smaller) in layer.options.items()
        if smaller < size
    ]
    return min(swaps, key=lambda swap: swap[0], default=None)
