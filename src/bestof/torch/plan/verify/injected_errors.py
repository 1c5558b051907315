"""Runs a plan with injected errors, to measure how rounding grows on its way to the results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from bestof.torch.ops.distance import Size, moved, pieces, size_of
from bestof.torch.plan.operations.channels import ToChannelsFirst, ToChannelsLast
from bestof.torch.plan.operations.checks import operation_of
from bestof.torch.plan.operations.dense import Dense
from bestof.torch.plan.operations.joined_channels import JoinedChannels
from bestof.torch.plan.operations.pooling import Pooling
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.binding import Binding
from bestof.torch.plan.steps.compared_step import ComparedStep
from bestof.torch.plan.steps.step import Step

# Injected errors are magnified to stand out of the rounding of everything else. No step errs by
# more than _SHAKEN: errors of bfloat16 stand out as they are, and a network answers larger ones out
# of proportion.
_MAGNIFIED = 64.0
_SHAKEN = 3e-3
# Operations that round nothing.
_COPIES = Dense, ToChannelsLast, ToChannelsFirst
_EPS = float(torch.finfo(torch.float32).eps)


class Moved(NamedTuple):
    """What injected errors do to a result: whether a result of whole numbers stays the same, and
    the size of the finite differences of others."""

    same: bool
    size: Size


def promised_errors(program: Program) -> dict[str, float]:
    """Return the promised errors of the layers, by the names of their steps."""
    binding = program.borrow()
    try:
        steps = [(step.name, step.chosen) for step in binding.steps if step.chosen is not None]
        promised = {name: one.promised_error for name, one in steps}
        return {name: error for name, error in promised.items() if error is not None}
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
    plain: Sequence[Any],
    seed: int = 0,
    varies: Callable[[int], Collection[int]] = range,
) -> list[Moved]:
    """Return how magnified errors move the results; they are injected into values in the arena.

    plain: the results without these errors. The others are not kept: they would take as much memory
    as the results of the plan and of the model.
    injected: (the error, what it is relative to) of each layer. Other steps err by rounding,
    averages by that of their sums, too.
    varies: the axes along which the signs of errors vary, by the number of axes; the errors are
    alike along the others.
    """
    generator = torch.Generator().manual_seed(seed)

    def shake(binding: Binding, step: Step) -> None:
        one, out = step.chosen, binding.slots[step.slot]
        if step.name in injected and isinstance(one, ComparedStep):
            out = one.out
        copies = _is_copy(program.nodes[step.slot])
        if isinstance(out, Tensor) and step.is_planned and not copies:
            error, scale = magnified * _rounding_error(out), _of_sums(program, binding, step)
            if step.name in injected:
                error, scale = injected[step.name]
                error *= magnified
            # All of one size: a single output with an error near zero would be allowed none.
            axes = varies(out.dim())
            extents = [size if axis in axes else 1 for axis, size in enumerate(out.shape)]
            error *= max(size_of(out).rms, scale)
            if len(axes) == out.dim():
                for (part,) in pieces(out):  # signs take as much memory as what they change
                    part.add_(_signs(torch.empty_like(part), error, generator))
            else:
                out.add_(_signs(out.new_empty(extents), error, generator))

    given = program.changed.copied(inputs)

    def compared(outputs: list[Any]) -> list[Moved]:
        results = [*outputs, *(given[place] for place in program.changed.places)]
        return [_moved(rough, one) for rough, one in zip(results, plain, strict=True)]

    return program.read(list(given), shake, compared)


def _of_sums(program: Program, binding: Binding, step: Step) -> float:
    """Return what the rounding of sums is relative to, beside the results; 0 if there is none.

    Of averages, it is the rms of what is added. The average of a norm's results is nearly 0, and
    the rounding errors of its sum are not. Of norms, it is the rms of the shift: where the mean is
    far from 0, a product and the shift cancel. Sums of bfloat16 are taken in float32, whose errors
    are smaller.
    """
    node = program.nodes[step.slot]
    operation = operation_of(node)
    if isinstance(operation, Pooling) and operation.window.kind == "average":
        added = binding.slots[program.nodes.index(node.args[0])]
    elif isinstance(operation, JoinedChannels) and operation.weights is not None:
        _, added = operation.weights.affine()
    else:
        return 0.0
    return size_of(added).rms * _EPS / float(torch.finfo(node.meta["val"].dtype).eps)


def _signs(memory: Tensor, error: float, generator: torch.Generator) -> Tensor:
    """Return errors of one size and random signs, in the given memory."""
    return memory.bernoulli_(0.5, generator=generator).mul_(2.0).sub_(1.0).mul_(error)


def _moved(rough: Any, plain: Any) -> Moved:
    if not isinstance(plain, Tensor):
        return Moved(True, Size())
    if plain.is_floating_point():
        return Moved(True, moved(rough, plain))
    return Moved(torch.equal(rough, plain), Size())


def results_of(
    program: Program,
    inputs: Sequence[Tensor],
    after_step: Callable[[Binding, Step], object] | None = None,
) -> list[Any]:
    """Return the outputs, then the changed inputs, of a run on copies of those."""
    given = program.changed.copied(inputs)
    outputs = program.run(list(given), after_step)
    return [*outputs, *(given[place] for place in program.changed.places)]
