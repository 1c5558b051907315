"""Verify that a plan computes what its model does."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from bestof.errors import BestofWarning, TorchError
from bestof.torch.convolution.alternative import ROUNDED, summation_bound
from bestof.torch.plan.activations import STEEPEST
from bestof.torch.plan.algorithms.algorithm import Algorithm
from bestof.torch.plan.algorithms.native import has_kernel_for
from bestof.torch.plan.algorithms.product import BFLOAT16
from bestof.torch.plan.algorithms.table import PYTORCH, algorithm
from bestof.torch.plan.convolution_step import ConvolutionStep
from bestof.torch.plan.graph import argument
from bestof.torch.plan.injected_errors import (
    error_of,
    magnification,
    promised_errors,
    results_of,
    rms,
    rounding_errors,
    run_shaken,
)
from bestof.torch.plan.layer import Layer
from bestof.torch.plan.program import Program
from bestof.torch.plan.raced_problem import NATIVE
from bestof.torch.plan.raced_problem import PYTORCH as RACED_BY_PYTORCH
from bestof.torch.plan.raced_step import RacedStep

_EPS = float(torch.finfo(torch.float32).eps)
_SQUARED_FLOATS = 2**22
_FEW_ROWS = 16  # a tile of a product at the most: its code differs with the number of rows
# Injected errors are independent, so their squares add up. Real ones may be alike: their sum is
# larger.
_ALIKE = 8.0
# Runs with injected errors, for results that only change as a whole: the largest of two numbers
# that are nearly equal. Each run moves one of them up with a chance of a half.
_SEEDS = 4


def verify(
    program: Program, inputs: Sequence[Tensor], expected: Sequence[Any], changed: Sequence[Tensor]
) -> None:
    """Raise TorchError if the results differ from the model's by more than rounding explains.

    expected: the outputs. changed: the inputs, as the model leaves them. `inputs` are not changed.

    First, each layer is compared with PyTorch's result for the values that reach it. If an
    algorithm exceeds its promise, PyTorch's kernel takes its place, and a warning says so. Then the
    outputs are compared. How rounding errors of single steps grow on their way to the outputs is
    measured: in a run with errors injected, in proportion to what each algorithm promises.
    """
    if _is_random(program):
        return
    with torch.no_grad():
        scales = _verify_steps(program, inputs)
        # Before the run, which may settle a layer after an algorithm with a larger error ran it.
        errors = promised_errors(program)
        got = results_of(program, inputs)
        magnified = magnification([*errors.values(), *rounding_errors(program)])
        injected = {name: (error, scales[name]) for name, error in errors.items()}
        shaken = run_shaken(program, inputs, injected, magnified)
        names = [f"output {place}" for place in range(len(expected))]
        names += [f"changed input {place}" for place in program.changed.places]
        rights = [*expected, *(changed[place] for place in program.changed.places)]
        for place, (name, plain, right) in enumerate(zip(names, got, rights, strict=True)):
            if isinstance(right, Tensor):
                _check_alike(name, plain, right)
                if right.is_floating_point():
                    _compare(name, plain, shaken[place], right, magnified)
                elif not torch.equal(plain, right):
                    runs = (
                        run_shaken(program, inputs, injected, max(magnified, _ALIKE), seed)[place]
                        for seed in range(_SEEDS)
                    )
                    _compare_exactly(name, plain, runs, right)


def _chosen(step: ConvolutionStep) -> Algorithm | None:
    return None if step.algorithm is None else algorithm(step.algorithm)


def _verify_steps(program: Program, inputs: Sequence[Tensor]) -> dict[str, float]:
    """Verify each layer; return what its promised error is relative to, by the name of the step."""
    scales: dict[str, float] = {}
    binding = program.borrow()
    try:
        binding.slots[: len(inputs)] = program.changed.copied(inputs)
        for step in binding.steps:
            one = step.convolution
            if one is None:
                if step.raced is not None:
                    _verify_raced(step.raced)
                step.run = step.run if step.raced is None else step.raced.run
                step.run()
                continue
            scales[step.name] = _verify_step(one)
    finally:
        binding.refresh()
        program.give_back(binding)
    return scales


def _verify_step(one: ConvolutionStep) -> float:
    """Run a layer, and by PyTorch instead if it is wrong; return what its error is relative to."""
    site, row = one.site, _chosen(one)
    # The result may lie where the residual does.
    residual = None if site.residual is None else site.residual.clone()
    x = site.x if isinstance(site.x, Tensor) else site.x()
    some = _compared(one, x.shape[0])
    part = None if residual is None else residual[some]
    allowed, right, scale = _reference(one, x[some], part)
    if site.gate is not None:
        # Errors may be largest where the gate is.
        gate = site.gate[some].float()
        allowed, right, scale = allowed * float(gate.abs().max()), right * gate, scale * rms(gate)
    if one.layer.weights.weight.dtype is torch.bfloat16:
        allowed += ROUNDED.rms * rms(right)
    one.run()
    off = rms(site.out[some] - right)
    if not off <= allowed and row is not None and not row.trusted:
        warnings.warn(
            f"optimize: {one.problem}: {row.name} is off by {off:.2g} rms where {allowed:.2g} is "
            "promised on the example inputs; PyTorch's own kernel takes its place",
            BestofWarning,
            stacklevel=5,
        )
        one.settle(PYTORCH.name)
        if site.residual is not None and residual is not None:
            site.residual.copy_(residual)
        one.run()
    return scale


def _verify_raced(one: RacedStep) -> None:
    """Let PyTorch run a step whose kernel is further from float64 than twice PyTorch's result.

    Four units more are allowed: PyTorch may be exact by chance.
    """
    if one.algorithm == RACED_BY_PYTORCH:
        return
    right = one.reference()
    one.runner(RACED_BY_PYTORCH)()
    allowed = 2 * rms(one.out - right) + 4 * _EPS * rms(right)
    one.out.fill_(float("nan"))
    one.runner(NATIVE)()
    off = rms(one.out - right)
    if not off <= allowed:
        warnings.warn(
            f"optimize: {one.problem}: the native kernel is off by {off:.2g} rms where "
            f"{allowed:.2g} is allowed on the example inputs; PyTorch's operator takes its place",
            BestofWarning,
            stacklevel=5,
        )
        one.settle(RACED_BY_PYTORCH)


def _compared(one: ConvolutionStep, images: int) -> list[int]:
    """Return the images, or rows, that are compared.

    All images are computed alike, so two of them show the algorithm's error. A few rows of a linear
    layer are each summed by code of their own, and any of them may be wrong.
    """
    few = one.problem.convolution.dtype == BFLOAT16 and images <= _FEW_ROWS
    if few or has_kernel_for(one.problem, "few rows"):
        return list(range(images))
    return [0, images - 1]


def _reference(
    one: ConvolutionStep, x: Tensor, residual: Tensor | None
) -> tuple[float, Tensor, float]:
    """Return (the rms error that is allowed, PyTorch's result, what the error is relative to).

    Promises are relative to the rms of the sums. If terms cancel beyond chance, they are relative
    to the rms of sums of such terms with random signs. If the algorithm rounds operands to
    bfloat16, PyTorch multiplies operands that are rounded alike: the error of rounding is promised
    for random operands only, and may be up to 2^-8 of the sum of the magnitudes of the terms
    (twice that, plus 2^-16, if both operands are rounded). For layers of bfloat16 the sums are
    compared as well, and the result may be rounded once.
    """
    layer, row = one.layer, _chosen(one)
    weight, bias = layer.weights.folded(), layer.weights.float_bias
    halves = weight.dtype is torch.bfloat16
    rounds = "both" if halves else "nothing" if row is None else row.rounds
    sums = summation_bound(one.problem.terms, "float32").rms
    error = error_of(one) if rounds == "nothing" else 2 * sums
    x = _rounded(x) if rounds == "both" else x
    plain = layer.product(x, weight) if rounds == "nothing" else _rounded_product(layer, x, weight)
    scale = max(rms(plain), sqrt(_mean_of_squares(layer, x, weight)))
    if bias is not None:
        plain += bias if layer.linear else bias[:, None, None]
    if residual is not None:
        plain += residual
    allowed = STEEPEST * (error * scale + 2 * _EPS * rms(plain))
    right = layer.activate(plain)
    return allowed, F.max_pool2d(right, 2) if layer.pooled else right, scale


def _rounded(values: Tensor) -> Tensor:
    return values.bfloat16().float()


def _rounded_product(layer: Layer, x: Tensor, weight: Tensor) -> Tensor:
    """Return the product with weights rounded to bfloat16, some filters at a time."""
    if layer.groups > 1:
        return layer.product(x, _rounded(weight))
    parts = torch.split(weight, _filters_at_once(weight))
    return torch.cat([layer.product(x, _rounded(part)) for part in parts], dim=1)


def _filters_at_once(weight: Tensor) -> int:
    return max(1, _SQUARED_FLOATS // weight[0].numel())


def _mean_of_squares(layer: Layer, x: Tensor, weight: Tensor) -> float:
    """Return the mean of the sums of squared terms.

    It is computed some filters at a time: the squares of the 411 MB of VGG16's first linear layer
    would be as many bytes again, and the peak of memory.
    """
    if layer.groups > 1:
        return float(layer.product(x.square(), weight.to(x.dtype).square()).mean())
    squares = x.square()
    split = torch.split(weight, _filters_at_once(weight))
    parts = ((layer.product(squares, part.to(x.dtype).square()), len(part)) for part in split)
    return sum(float(sums.mean(dtype=torch.float64)) * count for sums, count in parts) / len(weight)


def _check_alike(what: str, got: Any, right: Tensor) -> None:
    if not isinstance(got, Tensor) or got.shape != right.shape or got.dtype is not right.dtype:
        raise TorchError(
            f"optimize: {what}: expected {_described(right)}; the plan returns {_described(got)}"
        )


def _compare_exactly(what: str, got: Tensor, shaken: Iterable[Tensor], right: Tensor) -> None:
    """Raise TorchError, unless injected errors change a result that is no floating-point number.

    If they do, rounding alone may.
    """
    if all(torch.equal(got, rough) for rough in shaken):
        raise TorchError(
            f"optimize: {what}: {_described(right)} differs from the model's; {_REMEDY}"
        )


def _compare(what: str, got: Tensor, shaken: Tensor, right: Tensor, magnified: float) -> None:
    if right.numel() == 0:
        return
    finite = torch.isfinite(right)
    same = torch.equal(torch.nan_to_num(got[~finite], 0.5), torch.nan_to_num(right[~finite], 0.5))
    off = rms((got - right)[finite])
    size = float(torch.finfo(right.dtype).eps) * 16 * rms(right[finite])
    allowed = size + _ALIKE * rms((shaken - got)[finite]) / magnified
    if not (same and off <= allowed):
        raise TorchError(
            f"optimize: {what} differs from the model's by {off:.3g} rms where rounding explains "
            f"{allowed:.3g}; {_REMEDY}"
        )


_REMEDY = "accuracy='exact' runs the model's own operators; the model is untouched"


def _described(value: Any) -> str:
    return (
        f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    )


def _is_random(program: Program) -> bool:
    """Return whether an operator draws random numbers: then no two runs agree."""
    return any(map(_draws, program.nodes))


def _draws(node: Node) -> bool:
    """Return whether an operator draws random numbers; attention without dropout draws none."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    is_attention = node.target is torch.ops.aten.scaled_dot_product_attention.default
    return not (is_attention and argument(node, "dropout_p") == 0)
