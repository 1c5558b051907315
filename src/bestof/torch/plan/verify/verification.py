"""Verify that a plan computes what its model does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from bestof.errors import TorchError
from bestof.selection.notice import warn
from bestof.torch.ops.distance import are_equal, peak
from bestof.torch.ops.rounding_operation import RoundingOperation
from bestof.torch.plan.algorithms.algorithm import Runner
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.chosen_step import Choice
from bestof.torch.plan.steps.raced_step import NATIVE, RacedProblem, RacedStep
from bestof.torch.plan.steps.row_step import RowProblem, RowStep
from bestof.torch.plan.trace.graph import argument
from bestof.torch.plan.trace.strides import copied
from bestof.torch.plan.verify.bounds import Bounds
from bestof.torch.plan.verify.injected_errors import results_of
from bestof.torch.plan.verify.step_verification import replace_libraries, verify_steps
from bestof.torch.plan.verify.verification_inputs import are_usual, finite_inputs, normal_inputs

_REMEDY = "accuracy='exact' runs the model's own operators; the model is untouched"

Results = tuple[Sequence[Any], Sequence[Tensor]]  # the outputs; the inputs as they are left
Wide = Callable[[Sequence[Tensor]], Results | None]  # of a model in float64


def verify_examples(
    program: Program,
    inputs: Sequence[Tensor],
    expected: Results,
    run: Callable[[Sequence[Tensor]], Results],
    wide: Wide = lambda _: None,
) -> None:
    """Verify a plan for the example inputs, and for others if these tell little.

    run: runs the model on other inputs. wide: runs it in float64, or returns None.

    If the example holds NaN or infinity, the plan must also be right for numbers in their place. If
    rounding explains large differences, as for numbers near 1e6 before a norm, or if no input is of
    a usual size, it must also be right for normal numbers. Inputs of which the model makes no
    numbers are left out.
    """
    if _is_random(program):
        return
    if program.accuracy == "exact":
        verify_bits(program, inputs, expected, run)
        return
    tells = False
    numbers = finite_inputs(inputs)
    if numbers is not None:  # first, for what they show of a kernel
        tells = _verify_others(program, numbers, run, wide)
    tells = (verify(program, inputs, *expected, wide) and are_usual(inputs)) or tells
    others = None if tells else normal_inputs(inputs)
    if others is not None:
        _verify_others(program, others, run, wide)


def verify_bits(
    program: Program,
    inputs: Sequence[Tensor],
    expected: Results,
    run: Callable[[Sequence[Tensor]], Results],
) -> None:
    """Raise TorchError if a plan has other bits than its model, where the model repeats its own."""
    rights = _flat(program, expected)
    got = results_of(program, [copied(one, one.stride()) for one in inputs])
    if same_bits(got, rights) or not same_bits(_flat(program, run(inputs)), rights):
        return
    raise TorchError(
        "optimize: with accuracy='exact', the plan and the model differ in some bits: an operator "
        "runs another kernel when it is traced; run the model itself, or choose "
        "accuracy='float32', which keeps within rounding errors"
    )


def _flat_wide(program: Program, inputs: Sequence[Tensor], wide: Wide) -> list[Any] | None:
    """Return the results of the model in float64; None if it does not run so."""
    results = wide(inputs)
    return None if results is None else _flat(program, results)


def _flat(program: Program, results: Results) -> list[Any]:
    """Return the outputs, then the inputs that the program changes."""
    outputs, changed = results
    return [*outputs, *(changed[place] for place in program.changed.places)]


def same_bits(got: Sequence[Any], rights: Sequence[Any]) -> bool:
    """Return whether tensors are equal, NaN being equal to NaN; other values are not compared."""
    pairs = zip(got, rights, strict=True)
    return all(
        are_equal(one, right)
        for one, right in pairs
        if isinstance(one, Tensor) and isinstance(right, Tensor)
    )


def _verify_others(
    program: Program,
    inputs: Sequence[Tensor],
    run: Callable[[Sequence[Tensor]], Results],
    wide: Wide,
) -> bool:
    """Verify a plan for other inputs, unless the model makes no numbers of them.

    Next to the roots of negative numbers, rounding alone decides between 0 and NaN.
    """
    try:
        expected = run(inputs)
    except TorchError:
        return False
    outputs = (one for one in expected[0] if isinstance(one, Tensor))
    if not all(isfinite(peak(one)) for one in outputs if one.is_floating_point()):
        return False
    return verify(program, inputs, *expected, wide) and are_usual(inputs)


def verify(
    program: Program,
    inputs: Sequence[Tensor],
    expected: Sequence[Any],
    changed: Sequence[Tensor],
    wide: Wide = lambda _: None,
) -> bool:
    """Return whether the results tell that the plan is right.

    They do not if a result holds NaN or infinity, is 0, or if rounding explains large differences.
    TorchError if they differ from the model's by more than rounding explains.

    expected: the outputs. changed: the inputs, as the model leaves them. `inputs` are not changed.
    wide: runs the model in float64. NaN and infinity must lie where the model has them, or where
    the model in float64 has.

    First, each kernel is compared with PyTorch or float64 on the values that reach it. If it is
    wrong, PyTorch's takes its place, and a warning says so. Then the outputs are compared. How
    rounding errors of single steps grow on their way to the outputs is measured: in a run with
    errors injected, in proportion to what each algorithm promises.
    """
    with torch.no_grad():
        scales = verify_steps(program, inputs)
        rights = [*expected, *(changed[place] for place in program.changed.places)]
        bounds = Bounds(program, inputs, scales, partial(_flat_wide, program, inputs, wide))
        wrong = bounds.complaint(bounds.got, rights)
        if wrong is not None and replace_libraries(program, inputs):
            bounds.got = results_of(program, inputs)
            wrong = bounds.complaint(bounds.got, rights)
        if wrong is not None:
            wrong = _complaint_of_kernels(program, inputs, bounds, rights, wrong)
        if wrong is not None:
            raise TorchError(f"optimize: {wrong}; {_REMEDY}")
        return bounds.tell(rights)


def _complaint_of_kernels(
    program: Program, inputs: Sequence[Tensor], bounds: Bounds, rights: list[Any], wrong: str
) -> str | None:
    """Return what is wrong, or None if the error of PyTorch's own operators explains it.

    Its norm of 1,000 + x errs by 3e-5. Two comparisons take the place of one, within the same
    bounds. PyTorch's operators replace the results of all norms, attentions, softmax and
    activations, and the outputs must be the model's: all else is right. Results in float64 replace
    them, and the outputs must be the plan's: these steps are right. If they are not, PyTorch's take
    their place.
    """
    raced = [one for one in program.choices.values() if _errs_unlike_pytorch(one)]
    if not raced or bounds.complaint(_results_with(program, inputs, _by_pytorch), rights):
        return wrong
    is_open = any(one.algorithm is None for one in raced)
    got = _results_with(program, inputs, _by_kernel) if is_open else bounds.got
    difference = bounds.complaint(got, _results_with(program, inputs, _by_float64))
    if difference is None:
        return None
    warn(
        f"optimize: {difference}, with norms, attentions, softmax and activations by native "
        "kernels; PyTorch's operators take their place"
    )
    for choice in raced:
        choice.settle(_pytorchs(choice))
    program.bind_anew()
    return bounds.complaint(results_of(program, inputs), rights)


def _errs_unlike_pytorch(choice: Choice) -> bool:
    """Return whether a kernel whose result float64 can replace may run a step."""
    problem = choice.problem
    if isinstance(problem, RowProblem):
        found = isinstance(problem.operation, RoundingOperation) and problem.other is not None
    else:
        found = isinstance(problem, RacedProblem)
    return found and choice.algorithm != _pytorchs(choice)


def _pytorchs(choice: Choice) -> str:
    """Return the name of PyTorch's own operator among the alternatives of a step."""
    return (RowStep if isinstance(choice.problem, RowProblem) else RacedStep).pytorch


def _results_with(
    program: Program,
    inputs: Sequence[Tensor],
    replaced: Callable[[RacedStep | RowStep], Runner],
) -> list[Any]:
    """Return the results of a run in which steps with kernels that round otherwise run otherwise.

    These are norms, attentions, softmax and activations.
    """
    binding = program.borrow()
    for step in binding.steps:
        one = step.chosen
        if isinstance(one, RacedStep | RowStep) and _errs_unlike_pytorch(one.choice):
            step.run = replaced(one)
    program.give_back(binding)
    try:
        return results_of(program, inputs, lambda *_: None)  # by this binding, step by step
    finally:
        binding.refresh()


def _by_kernel(one: RacedStep | RowStep) -> Runner:
    return one.runner(_kernel_of(one))


def _kernel_of(one: RacedStep | RowStep) -> str:
    """Return the kernel that runs a step, or that may run it while the choice is open."""
    if isinstance(one, RacedStep):
        return NATIVE
    name: str | None = one.algorithm or one.problem.other
    assert name is not None
    return name


def _by_pytorch(one: RacedStep | RowStep) -> Runner:
    """Run the kernel, for what it may write elsewhere, then PyTorch's operator."""
    if isinstance(one, RowStep):
        return one.runner(one.pytorch)

    def run() -> None:
        operand = one.overwritten()
        one.runner(NATIVE)()
        one.renew(operand)
        one.runner(RacedStep.pytorch)()

    return run


def _by_float64(one: RacedStep | RowStep) -> Runner:
    """Run the kernel, for what it may write elsewhere, then take the result from float64."""
    if isinstance(one, RowStep):
        return one.run_in_float64

    def run() -> None:
        right = one.reference()
        one.runner(NATIVE)()
        one.out.copy_(right)

    return run


def _is_random(program: Program) -> bool:
    """Return whether an operator draws random numbers: then no two runs agree."""
    return any(map(_draws, program.nodes))


def _draws(node: Node) -> bool:
    """Return whether an operator draws random numbers; attention without dropout draws none."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    is_attention = node.target is torch.ops.aten.scaled_dot_product_attention.default
    return not (is_attention and argument(node, "dropout_p") == 0)
