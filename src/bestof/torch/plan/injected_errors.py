"""Runs a plan with injected errors, to measure how rounding grows on its way to the results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from bestof.torch.distance import finite, rms
from bestof.torch.plan.algorithms.table import PYTORCH, promised_error
from bestof.torch.plan.binding import Binding
from bestof.torch.plan.convolution_step import ConvolutionStep
from bestof.torch.plan.operations.channels import ToChannelsFirst, ToChannelsLast
from bestof.torch.plan.operations.checks import operation_of
from bestof.torch.plan.operations.dense import Dense
from bestof.torch.plan.program import Program
from bestof.torch.plan.step import Step

# Injected errors are magnified to stand out of the rounding of everything else. No step errs by
# more than _SHAKEN: errors of bfloat16 stand out as they are, and a network answers larger ones out
# of proportion.
_MAGNIFIED = 64.0
_SHAKEN = 3e-3
# Operations that round nothing.
_COPIES = Dense, ToChannelsLast, ToChannelsFirst
_EPS = float(torch.finfo(torch.float32).eps)


def error_of(step: ConvolutionStep) -> float:
    """Return the promised rms error of a step, that of PyTorch's result included.

    It is relative to the rms of the sums.
    """
    theirs = PYTORCH.error(step.problem)
    return theirs + max(theirs, promised_error(step.problem, step.algorithm))


def promised_errors(program: Program) -> dict[str, float]:
    """Return the promised errors of the layers, by the names of their steps."""
    binding = program.borrow()
    try:
        steps = ((step.name, step.convolution) for step in binding.steps)
        return {name: error_of(one) for name, one in steps if one is not None}
    finally:
        program.give_back(binding)


def rounding_errors(program: Program) -> list[float]:
    """Return the errors that are injected into the values of other steps in the arena."""
    nodes = (node for node in program.planned if not _is_copy(node))
    return [_rounding_error(node.meta["val"]) for node in nodes]


def _is_copy(node: Node) -> bool:
    return isinstance(operation_of(node), _COPIES)


def _rounding_error(value: Tensor) -> float:
    return 2 * float(torch.finfo(value.dtype).eps)


def magnification(errors: Collection[float]) -> float:
    """Return how many times larger than promised the injected errors are."""
    return min(_MAGNIFIED, max(1.0, _SHAKEN / max(errors, default=_EPS)))


def run_shaken(
    program: Program,
    inputs: Sequence[Tensor],
    injected: dict[str, tuple[float, float]],
    magnified: float,
    seed: int = 0,
    varies: Callable[[int], Collection[int]] = range,
) -> list[Any]:
    """Return the results with magnified errors injected into what steps compute in the arena.

    injected: (the error, what it is relative to) of each layer. Other steps err by rounding.
    varies: the axes along which the signs of errors vary, by the number of axes; the errors are
    alike along the others.
    """
    generator = torch.Generator().manual_seed(seed)

    def shake(binding: Binding, step: Step) -> None:
        one = step.convolution
        out = one.site.out if one is not None else binding.slots[step.slot]
        copies = _is_copy(program.nodes[step.slot])
        if isinstance(out, Tensor) and step.is_planned and not copies:
            error, scale = magnified * _rounding_error(out), 0.0
            if one is not None:
                error, scale = injected[step.name]
                error *= magnified
            # All of one size: a single output with an error near zero would be allowed none.
            axes = varies(out.dim())
            extents = [size if axis in axes else 1 for axis, size in enumerate(out.shape)]
            drawn = torch.empty_like(out) if len(axes) == out.dim() else out.new_empty(extents)
            signs = drawn.bernoulli_(0.5, generator=generator).mul_(2.0).sub_(1.0)
            out.add_(signs.mul_(error * max(rms(finite(out)), scale)))

    return results_of(program, inputs, shake)


def results_of(
    program: Program,
    inputs: Sequence[Tensor],
    after_step: Callable[[Binding, Step], object] | None = None,
) -> list[Any]:
    """Return the outputs, then the changed inputs, of a run on copies of those."""
    given = program.changed.copied(inputs)
    outputs = program.run(list(given), after_step)
    return [*outputs, *(given[place] for place in program.changed.places)]
