"""Choose algorithms so that a program's weights take no more memory than a limit."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch

from bestof.torch.plan.algorithms.table import algorithm
from bestof.torch.plan.run.plan_bytes import memory_of
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.convolution_step import ConvolutionStep

_TRIALS = 3


@dataclass(slots=True)
class _Layer:
    """The steps with the same weights; (seconds, bytes) by algorithm, if all were tried by it."""

    steps: list[ConvolutionStep]
    options: dict[str, tuple[float, int]]
    chosen: str

    @property
    def cost(self) -> tuple[float, int]:
        return self.options[self.chosen]


def limit_memory(program: Program, limit: int) -> None:
    """Settle a tuned program so that the released plan takes at most `limit` bytes.

    If that is not possible, the plan takes as few bytes as possible. Layers give up speed where
    that costs least for each byte: for an algorithm with smaller weights, or for the same one
    without packing, which transforms weights at each call. VGG16, one image: F(4) takes 252 MB
    packed and 52 ms, and 59 MB and 67 ms without; the best algorithm that transforms nothing takes
    59 MB and 120 ms.
    """
    beyond = memory_of(program, 0).own - limit
    binding = program.borrow()
    try:
        layers = _layers(binding.layers)
        while beyond > 0:
            swaps = [swap for layer in layers if (swap := _cheapest_swap(layer)) is not None]
            if not swaps:
                break
            _, layer, name = min(swaps, key=lambda swap: swap[0])
            beyond -= layer.cost[1] - layer.options[name][1]
            layer.chosen = name
        for layer in layers:
            for step in layer.steps:
                step.choice.limit(layer.chosen)
    finally:
        binding.refresh()
        program.give_back(binding)


def _layers(steps: list[ConvolutionStep]) -> list[_Layer]:
    alike: dict[int, list[ConvolutionStep]] = {}
    for step in steps:
        alike.setdefault(id(step.layer.weights), []).append(step)
    found = []
    for group in alike.values():
        choices = [_options(step) for step in group]
        shared = set(choices[0]).intersection(*choices[1:])
        options = {
            name: (sum(one[name][0] for one in choices), choices[0][name][1]) for name in shared
        }
        chosen = [step.algorithm for step in group if step.algorithm is not None]
        fastest = min(options, key=lambda name: options[name][0])
        found.append(
            _Layer(group, options, chosen[0] if chosen and chosen[0] in options else fastest)
        )
    return found


def _options(step: ConvolutionStep) -> dict[str, tuple[float, int]]:
    """Return the seconds and bytes of each algorithm that the selector has timed.

    The chosen algorithm without packing is one more option.
    """
    rows = step.selector.explain(step).alternatives
    options = {
        row.name: (row.seconds, _bytes(step, row.name)) for row in rows if row.seconds is not None
    }
    chosen = step.algorithm
    if chosen is None:
        return options
    if chosen not in options:  # the only one, or ordered: nothing was timed
        options[chosen] = 0.0, _bytes(step, chosen)
    unpacked = algorithm(chosen).unpacked(step.problem)
    if unpacked is not None:
        # Both are timed alone here, where all takes longer than in the running program.
        more = _seconds(step, unpacked.name) - _seconds(step, chosen)
        options[unpacked.name] = options[chosen][0] + max(more, 0.0), _bytes(step, unpacked.name)
    return options


def _bytes(step: ConvolutionStep, name: str) -> int:
    """Return the bytes of the weights that an algorithm keeps; packs them to see."""
    return algorithm(name).weight_bytes(step.placed)


def _seconds(step: ConvolutionStep, algorithm: str) -> float:
    run, sweep = step.runner(algorithm), torch.zeros(2**24)
    times = []
    for _ in range(_TRIALS):
        sweep.add_(1.0)  # weights come from memory, as in a running model
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return median(times)


def _cheapest_swap(layer: _Layer) -> tuple[float, _Layer, str] | None:
    """Return the algorithm that costs the fewest seconds for each byte that it saves."""
    seconds, size = layer.cost
    swaps = [
        ((other - seconds) / (size - smaller), layer, name)
        for name, (other, smaller) in layer.options.items()
        if smaller < size
    ]
    return min(swaps, key=lambda swap: swap[0], default=None)
