"""Verify the kernels of a plan's steps: each against PyTorch or float64, for its own operands."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite

import torch
from torch import Tensor

from bestof.errors import BestofWarning
from bestof.torch.ops.distance import Distance, Size, distance, peak, size_of
from bestof.torch.ops.rounding import UNIT
from bestof.torch.plan.algorithms.table import PYTORCH
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.convolution_step import ConvolutionStep
from bestof.torch.plan.steps.raced_step import NATIVE, RacedStep
from bestof.torch.plan.steps.raced_step import PYTORCH as RACED_BY_PYTORCH
from bestof.torch.plan.steps.row_step import RowStep
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.verify.layer_reference import (
    algorithm_of,
    allowed_error,
    compared_images,
    promise_of,
    reference,
    scale_of,
)

_EPS = float(torch.finfo(torch.float32).eps)
# Of one element, over the rms that is allowed and how far elements stand out. Kernels promise 10.
_SINGLE = 32.0
_HIDDEN = 1e-3
# PyTorch's error on normal numbers where all should vanish: norms of one number err by 1e-5.
_VANISHING = 1e-4
_TINY = float(torch.finfo(torch.float32).tiny)  # smaller numbers have fewer digits, or none


@dataclass(frozen=True, slots=True)
class Comparison:
    """What one run of a kernel shows.

    same: whether NaN and infinities lie where they should. off, allowed: the rms error of the other
    elements. single, single_allowed: the largest error. shows: whether the run shows enough of the
    kernel. It does not if NaN, infinity or a bias hides elements, if all are 0, or if PyTorch's
    own error is so large that the kernel's could be. explains: whether that error is small.
    """

    same: bool
    off: float
    allowed: float
    single: float
    single_allowed: float
    shows: bool
    explains: bool = True

    def complaint(self, operands: str) -> str | None:
        """Return what is wrong, in words; None if nothing is."""
        if not self.same:
            return f"puts NaN or infinity elsewhere than PyTorch does, on {operands}"
        if not self.off <= self.allowed:
            return f"is off by {self.off:.2g} rms where {self.allowed:.2g} is allowed on {operands}"
        if not self.single <= self.single_allowed:
            return (
                f"is off by {self.single:.2g} in an element where {self.single_allowed:.2g} is "
                f"allowed on {operands}"
            )
        return None


def verify_steps(program: Program, inputs: Sequence[Tensor]) -> dict[str, float]:
    """Verify each step with a choice; PyTorch runs those whose kernel is wrong.

    Return what the promised error of each layer is relative to, by the name of the step.

    Each kernel runs on the values that reach it. If they do not show enough of it, the kernel also
    runs on normal numbers of the same shapes.
    """
    scales: dict[str, float] = {}
    generator = torch.Generator().manual_seed(0)
    binding = program.borrow()
    try:
        binding.slots[: len(inputs)] = program.changed.copied(inputs)
        for step in binding.steps:
            made_up = partial(program.made_up_step, binding, step, generator)
            if step.convolution is not None:
                scales[step.name] = _verify_layer(step.convolution, made_up)
                continue
            if step.raced is not None:
                _verify_raced(step.raced, made_up)
                step.run = step.raced.run
            if step.by_row is not None:
                _verify_row(step.by_row)
                step.run = step.by_row.run
            step.run()
    finally:
        binding.refresh()
        program.give_back(binding)
    return scales


def _verify_layer(one: ConvolutionStep, made_up: Callable[[], Step]) -> float:
    """Run a layer, and by PyTorch instead if it is wrong; return what its error is relative to."""
    row = algorithm_of(one)
    # The result may lie where the residual does.
    residual = None if one.site.residual is None else one.site.residual.clone()
    found, scale = _compare_layer(one, residual)
    if row is None or row.trusted:
        return scale
    wrong = found.complaint("the values that reach it")
    if wrong is None and not found.shows:
        other = made_up().convolution
        assert other is not None
        other.learn()
        beside = other.site.residual
        again, _ = _compare_layer(other, None if beside is None else beside.clone())
        wrong = again.complaint("random values")
    if wrong is not None:
        _warn(f"{one.problem}: {row.name} {wrong}; PyTorch's own kernel takes its place")
        one.settle(PYTORCH.name)
        if one.site.residual is not None and residual is not None:
            one.site.residual.copy_(residual)
        one.run()
    return scale


def _compare_layer(one: ConvolutionStep, residual: Tensor | None) -> tuple[Comparison, float]:
    """Run a layer; return how it compares with PyTorch, and what its error is relative to.

    residual: a copy, which the run does not overwrite.

    The layer runs first. Then its results are compared with PyTorch's, some filters at a time.
    """
    site = one.site
    x = site.x if isinstance(site.x, Tensor) else site.x()
    operands = [given for given in (x, residual, site.gate) if given is not None]
    is_finite = all(isfinite(peak(given)) for given in operands)
    # NaN is rare, and may reach any image.
    some = compared_images(one, x.shape[0]) if is_finite else list(range(x.shape[0]))
    compared = partial(_images, some=some)
    rounding = torch.finfo(one.layer.weights.weight.dtype).eps / 2  # of one result
    gate = None if site.gate is None else compared(site.gate).float()
    promise = promise_of(one)
    one.run()
    out, x = compared(site.out), compared(x)
    part = None if residual is None else compared(residual)
    product, plain, seen, numbers, found = Size(), Size(), Size(), Size(), Distance()
    elements = 0
    for filters, sums, with_all, right in reference(one.layer, promise, x, part):
        product, plain = product.joined(sums), plain.joined(with_all)
        seen = seen.joined(size_of(right))
        gated = right if gate is None else right * gate[:, filters]
        numbers = numbers.joined(size_of(gated))
        elements += gated.numel()
        found = found.joined(distance(out[:, filters], gated))
    scale = scale_of(one.layer, promise, x, product)
    allowed = allowed_error(promise, scale, plain)
    is_seen = scale > _HIDDEN * seen.rms  # else bias or residual hide the products
    if gate is not None:  # errors may be largest where the gate is
        beside = size_of(gate)
        allowed, scale = allowed * beside.peak, scale * beside.rms
    if rounding > UNIT:
        allowed += rounding * numbers.rms
    allowed += _TINY
    shows = is_seen and numbers.rms > 0 and numbers.many == elements
    stands_out = max(_stands_out(numbers), _stands_out(size_of(x)))
    same, off = found
    single_allowed = _SINGLE * allowed * stands_out
    return Comparison(same, off.rms, allowed, off.peak, single_allowed, shows), scale


def _images(values: Tensor, some: Sequence[int]) -> Tensor:
    """Return some images of a value: a view if they are all."""
    return values if len(some) == values.shape[0] else values[list(some)]


def _verify_raced(one: RacedStep, made_up: Callable[[], Step]) -> None:
    """Let PyTorch run a norm or an attention whose kernel is wrong; its operands stay as they are.

    Where PyTorch errs by more than roundings of the result, a kernel may be wrong by as much. So it
    runs on normal numbers too.
    """
    if one.algorithm == RACED_BY_PYTORCH:
        return
    operand = one.overwritten()
    found = _compare_raced(one, operand)
    wrong = found.complaint("the values that reach it")
    if wrong is None and not found.shows:
        other = made_up().raced
        assert other is not None
        again = _compare_raced(other, other.overwritten())
        wrong = again.complaint("random values")
        if wrong is None and not again.explains:
            wrong = "and float64 differ from PyTorch on random values"
    if wrong is not None:
        _warn(f"{one.problem}: the native kernel {wrong}; PyTorch's operator takes its place")
        one.settle(RACED_BY_PYTORCH)
    one.renew(operand)


def _verify_row(one: RowStep) -> None:
    """Let PyTorch run an operation whose row is wrong; its operands stay as they are."""
    wrong = one.complaint()
    if wrong is not None:
        _warn(f"{one.problem}: {one.algorithm}: {wrong}; PyTorch's own kernel takes its place")
        one.settle(one.pytorch)


def _compare_raced(one: RacedStep, operand: Tensor | None) -> Comparison:
    """Run both alternatives of a step; return how the kernel compares with float64.

    It may err twice as much as PyTorch does, and by four units more: PyTorch may be exact by
    chance. NaN and infinities must lie where PyTorch's do, or those of float64.
    """
    right = one.reference()
    one.runner(RACED_BY_PYTORCH)()
    as_right, theirs = distance(one.out, right)
    plain = one.out.clone()
    one.renew(operand)
    one.runner(NATIVE)()
    same, off = distance(one.out, right)
    same = same or distance(one.out, plain).same
    numbers = size_of(right)
    size = numbers.rms
    unit = float(torch.finfo(one.out.dtype).eps)
    # Where PyTorch overflows, its other elements do not show how far results are rounded.
    allowed = 2 * theirs.rms + (4 * _EPS if as_right else 4 * unit) * size + _TINY
    ordinary = 4 * unit * size
    is_whole = size > 0 and numbers.many == right.numel()
    shows = is_whole and as_right and theirs.rms <= ordinary
    single_allowed = _SINGLE * allowed * _stands_out(numbers)
    explains = theirs.rms <= ordinary + _VANISHING
    return Comparison(same, off.rms, allowed, off.peak, single_allowed, shows, explains)


def _stands_out(size: Size) -> float:
    """Return the largest magnitude over the rms, at least 1."""
    return max(1.0, size.peak / size.rms) if size.rms > 0 else 1.0


def _warn(message: str) -> None:
    # Of the caller of `optimize`.
    warnings.warn(f"optimize: {message}", BestofWarning, stacklevel=10)
