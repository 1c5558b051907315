"""Whether a plan computes what the model does: step by step within what its algorithms promise, and in the end."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bestof.errors import BestofWarning, TorchError
from bestof.torch.convolution.alternative import summation_bound
from bestof.torch.plan.convolution_step import ConvolutionStep
from bestof.torch.plan.operation import Convolution, activate
from bestof.torch.plan.program import Binding, Program, Step
from bestof.torch.plan.selection import ONEDNN, PYTORCH, native_name, promised_error

_EPS = float(torch.finfo(torch.float32).eps)
# The steepest slope of the activations, that of hard_swish at 3.
_SLOPE = 1.5
# Errors are injected so many times larger than promised, that they stand out of the rounding of everything else; those
# of bfloat16 do as they are, and a network would not answer in proportion to more: no step errs by more than this.
_MAGNIFIED = 64.0
_SHAKEN = 3e-3
_SQUARED_FLOATS = 2**22
# `matvec` takes no more.
_BLOCKED_ROWS = 8
# Injected errors are independent, and add up by their squares; real ones may be alike, and then their sum is larger.
_ALIKE = 8.0
# What these round to bfloat16, x or only the weights. That errs by up to 2^-8 of the sum of the magnitudes of the terms
# (twice, plus 2^-16, where both are rounded), and by what is promised at random only: so a step is held to the sums of
# what it multiplies.
_ROUNDS_X = {"matvec_bf16": False, "convgemm_bf16": True}


def verify(program: Program, inputs: Sequence[Tensor], expected: Sequence[Any]) -> None:
    """Raise TorchError where the outputs for `inputs` differ from `expected` by more than rounding explains.

    Before that each convolution is compared with PyTorch's on the values that reach it; an algorithm that exceeds its
    promise is warned of, and PyTorch's takes its place. How rounding errors of single steps grow on their way to the
    outputs is measured: a run with errors injected, in proportion to what each step's algorithm promises.
    """
    if _is_random(program):
        return
    with torch.no_grad():
        scales = _verify_steps(program, inputs)
        got = program.run(list(inputs))
        magnified = _magnified(program)
        shaken = _run_shaken(program, inputs, magnified, scales)
        for position, (plain, rough, right) in enumerate(zip(got, shaken, expected, strict=True)):
            if isinstance(right, Tensor):
                _compare(f"output {position}", plain, rough, right, magnified)


def error_of(step: ConvolutionStep) -> float:
    """The promised rms error of a step's result over the rms of the sum that it is, PyTorch's own included."""
    problem = step.problem.convolution
    _, channels, height, width = problem.weight_shape
    theirs = summation_bound(channels * height * width, "float32").rms
    if step.algorithm in (ONEDNN, PYTORCH):
        return 2 * theirs
    return theirs + max(theirs, promised_error(step.problem, step.algorithm))


def _error_of_sums(step: ConvolutionStep) -> float:
    """As `error_of`, of the sums alone, where operands are rounded to bfloat16 first: those are as PyTorch's."""
    _, channels, height, width = step.problem.convolution.weight_shape
    return 2 * summation_bound(channels * height * width, "float32").rms


def _verify_steps(program: Program, inputs: Sequence[Tensor]) -> dict[str, float]:
    """What the promised errors of the steps are relative to, by their names."""
    scales: dict[str, float] = {}
    binding = program.borrow()
    try:
        binding.slots[: len(inputs)] = list(inputs)
        for step in binding.steps:
            one = step.convolution
            if one is None:
                step.run()
                continue
            residual = (
                None if one.residual is None else one.residual.clone()
            )  # it may be where the result goes
            x = one.x if isinstance(one.x, Tensor) else one.x()
            some = _compared(one, x.shape[0])
            allowed, right, scales[step.name] = _reference(
                one, x[some], residual if residual is None else residual[some]
            )
            one.run()
            off = _rms(one.out[some] - right)
            if not off <= allowed and one.algorithm not in (None, ONEDNN, PYTORCH):
                warnings.warn(
                    f"optimize: {one.problem}: {one.algorithm} is off by {off:.2g} rms where {allowed:.2g} is promised "
                    f"on the example inputs; PyTorch's own kernel takes its place",
                    BestofWarning,
                    stacklevel=4,
                )
                one.settle(PYTORCH)
                if one.operation.weights.only is not None:
                    one.operation.weights.only = PYTORCH
                program.fixed[step.name] = PYTORCH
                if residual is not None:
                    one.residual.copy_(residual)  # type: ignore[union-attr]
                one.run()
    finally:
        binding.refresh()
        program.give_back(binding)
    return scales


def _compared(one: ConvolutionStep, images: int) -> list[int]:
    """The images, or rows, that are compared.

    All images are computed alike, and two of them show the algorithm's error; few rows of a linear layer are summed by
    code of their own each, and any of them may be wrong.
    """
    if one.operation.linear and images <= _BLOCKED_ROWS:
        return list(range(images))
    return [0, images - 1]


def _reference(
    one: ConvolutionStep, x: Tensor, residual: Tensor | None
) -> tuple[float, Tensor, float]:
    """The rms error that is allowed, the result by PyTorch, of operands rounded as the algorithm rounds them, and what
    the error is relative to.

    Promises are relative to the rms of the sum; where terms cancel beyond chance, to that of a sum of such terms with
    random signs.
    """
    operation = one.operation
    weight, bias = operation.weights.folded(), operation.weights.bias
    rounds_x = None if one.algorithm is None else _ROUNDS_X.get(native_name(one.algorithm))
    error = error_of(one) if rounds_x is None else _error_of_sums(one)
    if rounds_x:
        x = _rounded(x)
    plain = (
        _product(operation, x, weight)
        if rounds_x is None
        else _rounded_product(operation, x, weight)
    )
    scale = max(_rms(plain), sqrt(_mean_of_squares(operation, x, weight)))
    if bias is not None:
        plain += bias if operation.linear else bias[:, None, None]
    if residual is not None:
        plain += residual
    allowed = _SLOPE * (error * scale + 2 * _EPS * _rms(plain))
    right = activate(plain, operation.activation, operation.slope)
    return allowed, F.max_pool2d(right, 2) if one.problem.pooled else right, scale


def _product(operation: Convolution, x: Tensor, weight: Tensor) -> Tensor:
    if operation.linear:
        return F.linear(x, weight)
    return F.conv2d(
        x, weight, None, operation.stride, operation.padding, operation.dilation, operation.groups
    )


def _rounded(values: Tensor) -> Tensor:
    return values.bfloat16().float()


def _rounded_product(operation: Convolution, x: Tensor, weight: Tensor) -> Tensor:
    """The product with weights rounded to bfloat16, some filters at a time: see `_mean_of_squares`."""
    if operation.groups > 1:
        return _product(operation, x, _rounded(weight))
    parts = torch.split(weight, _filters_at_once(weight))
    return torch.cat([_product(operation, x, _rounded(part)) for part in parts], dim=1)


def _filters_at_once(weight: Tensor) -> int:
    return max(1, _SQUARED_FLOATS // weight[0].numel())


def _mean_of_squares(operation: Convolution, x: Tensor, weight: Tensor) -> float:
    """The mean of the sums of squared terms, some filters at a time: squares of the 411 MB of VGG16's first linear
    layer are as many bytes again, and were the peak of memory."""
    if operation.groups > 1:
        return float(_product(operation, x.square(), weight.square()).mean())
    squares = x.square()
    split = torch.split(weight, _filters_at_once(weight))
    parts = ((_product(operation, squares, part.square()), len(part)) for part in split)
    return sum(float(sums.mean(dtype=torch.float64)) * count for sums, count in parts) / len(weight)


def _magnified(program: Program) -> float:
    """How many times larger than promised the injected errors are."""
    binding = program.borrow()
    try:
        errors = [
            error_of(step.convolution) for step in binding.steps if step.convolution is not None
        ]
    finally:
        program.give_back(binding)
    return min(_MAGNIFIED, max(1.0, _SHAKEN / max(errors, default=_EPS)))


def _run_shaken(
    program: Program, inputs: Sequence[Tensor], magnified: float, scales: dict[str, float]
) -> list[Any]:
    """The outputs with errors injected into every value that a step of ours writes."""
    generator = torch.Generator().manual_seed(0)

    def shake(binding: Binding, step: Step) -> None:
        one = step.convolution
        out = one.out if one is not None else binding.slots[step.slot]
        if isinstance(out, Tensor) and step.is_planned:
            error = magnified * (error_of(one) if one is not None else 2 * _EPS)
            # Of one size: a single output, whose error is drawn near zero, would be allowed none.
            signs = torch.empty_like(out).bernoulli_(0.5, generator=generator).mul_(2.0).sub_(1.0)
            out.add_(signs.mul_(error * max(_rms(out), scales.get(step.name, 0.0))))

    return program.run(list(inputs), after_step=shake)


def _compare(what: str, got: Any, shaken: Any, right: Tensor, magnified: float) -> None:
    if not isinstance(got, Tensor) or got.shape != right.shape or got.dtype is not right.dtype:
        raise TorchError(
            f"optimize: {what}: expected {_described(right)}; the plan returns {_described(got)}"
        )
    if right.numel() == 0:
        return
    if not right.is_floating_point():
        if torch.equal(got, shaken) and not torch.equal(
            got, right
        ):  # else rounding alone may change it
            raise TorchError(
                f"optimize: {what}: {_described(right)} differs from the model's; {_REMEDY}"
            )
        return
    finite = torch.isfinite(right)
    same = torch.equal(torch.nan_to_num(got[~finite], 0.5), torch.nan_to_num(right[~finite], 0.5))
    off = _rms((got - right)[finite])
    size = float(torch.finfo(right.dtype).eps) * 16 * _rms(right[finite])
    allowed = size + _ALIKE * _rms((shaken - got)[finite]) / magnified
    if not (same and off <= allowed):
        raise TorchError(
            f"optimize: {what} differs from the model's by {off:.3g} rms where rounding explains {allowed:.3g}; "
            f"{_REMEDY}"
        )


_REMEDY = "accuracy='exact' runs the model's own operators; the model is untouched"


def _described(value: Any) -> str:
    return (
        f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    )


def _rms(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values)) / sqrt(max(values.numel(), 1))


def _is_random(program: Program) -> bool:
    """Whether an operator draws random numbers: then no two runs agree, and there is nothing to compare."""
    tag = torch.Tag.nondeterministic_seeded
    return any(tag in getattr(node.target, "tags", ()) for node in program.nodes)
