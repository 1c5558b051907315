"""Verify the kernels of a plan's steps: each against PyTorch or float64, for its own operands."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bestof.selection.notice import warn
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.compared_step import ComparedStep
from bestof.torch.plan.steps.row_step import RowStep


def verify_steps(program: Program, inputs: Sequence[Tensor]) -> dict[str, float]:
    """Verify each step with a choice; PyTorch runs those whose kernel is wrong.

    Return what the promised error of each layer is relative to, by the name of the step.

    Each kernel runs on the values that reach it. If they do not show enough of it, the kernel also
    runs on normal numbers of the same shapes. Where a choice is open, its selector compares the
    first result of each alternative.
    """
    scales: dict[str, float] = {}
    binding = program.borrow()
    try:
        binding.slots[: len(inputs)] = program.changed.copied(inputs)
        for step in binding.steps:
            if isinstance(step.chosen, ComparedStep):
                scales[step.name] = _run_compared(step.chosen)
                continue
            if isinstance(step.chosen, RowStep):
                _verify_row(step.chosen)
                step.run = step.chosen.run
            step.run()
    finally:
        binding.refresh()
        program.give_back(binding)
    return scales


def replace_libraries(program: Program, inputs: Sequence[Tensor]) -> bool:
    """Let PyTorch run the layers whose library loses NaN; return whether there are any.

    oneDNN's ReLU gives 0 for NaN.
    """
    found = False
    binding = program.borrow()
    try:
        binding.slots[: len(inputs)] = program.changed.copied(inputs)
        for step in binding.steps:
            one = step.chosen
            if isinstance(one, ComparedStep) and _loses_nan(one):
                step.run, found = one.run, True
            elif not isinstance(one, ComparedStep):
                step.run()
    finally:
        binding.refresh()
        program.give_back(binding)
    if found:
        program.bind_anew()
    return found


def _loses_nan(one: ComparedStep) -> bool:
    """Run a step, and by PyTorch instead if a library puts NaN or infinity elsewhere."""
    name, overwritten = one.algorithm, one.overwritten()
    one.renew(overwritten)
    one.run()
    if name in (None, one.pytorch) or not one.trusts(str(name)):
        return False
    found = one.compared(name, overwritten)
    if found.same:
        return False
    _run_by_pytorch(one, f"{name} {found.complaint('the values that reach it')}", overwritten)
    return True


def _run_compared(one: ComparedStep) -> float:
    """Run a step, and by PyTorch instead if it is wrong; return what its error is relative to."""
    name, overwritten = one.algorithm, one.overwritten()
    one.renew(overwritten)
    one.run()
    if name is None or one.trusts(name):
        promises = one.promised_error is not None
        return one.compared(name, overwritten).scale if promises else 0.0
    wrong, scale = one.judged(name, overwritten)
    if wrong is not None:
        _run_by_pytorch(one, f"{name} {wrong}", overwritten)
    return scale


def _run_by_pytorch(one: ComparedStep, why: str, overwritten: Tensor | None) -> None:
    """Run a step once more, and from now on, by PyTorch; a warning says why."""
    _warn(f"{one.problem}: {why}; PyTorch's own kernel takes its place")
    one.settle(one.pytorch)
    one.renew(overwritten)
    one.run()


def _verify_row(one: RowStep) -> None:
    """Let PyTorch run an operation whose row is wrong; its operands stay as they are."""
    wrong = one.complaint() if one.is_comparable else None
    if wrong is not None:
        _warn(f"{one.problem}: {one.algorithm}: {wrong}; PyTorch's own kernel takes its place")
        one.settle(one.pytorch)


def _warn(message: str) -> None:
    warn(f"optimize: {message}")
