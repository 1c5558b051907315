"""Judges plans of models that are right: none is refused, and each computes what its model does."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import bestof.torch as bt
from bestof.errors import BestofError, BestofWarning
from bestof.torch.ops import table
from bestof.torch.ops.activation import activation
from bestof.torch.ops.distance import differences, rms
from bestof.torch.ops.norm import layer_norm_problem
from bestof.torch.ops.softmax import softmax
from bestof.torch.plan import optimized
from bestof.torch.plan.algorithms.table import applicable
from bestof.torch.plan.layers.problem import FusedProblem
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.row_step import RowProblem

_RUNS = 16
_QUANTILE = 7.642
"""Of Student's distribution with 16 degrees of freedom: one error in a million is larger.

The error of a result is a sum of errors of many steps. If only one number is left of it, its
distribution is nearly normal, and its spread is known from 16 runs with other errors."""

_aten = torch.ops.aten
_PRODUCTS = {
    _aten.convolution.default,
    _aten.mm.default,
    _aten.bmm.default,
    _aten.addmm.default,
    _aten.baddbmm.default,
}
_WINOGRAD = 2.5e-6
"""The largest rms error that a native kernel promises at the accuracy `float32`, of the sums."""


def settled_by(random: Random) -> Callable[[Program, Sequence[Tensor]], None]:
    """Return a function that chooses at random, in place of a race, which no run could repeat."""

    def settle(program: Program, _: Sequence[Tensor]) -> None:
        for choice in program.choices.values():
            if isinstance(choice.problem, FusedProblem):
                choice.settle(random.choice(applicable(choice.problem)))
            elif isinstance(choice.problem, RowProblem):
                rows = [row.name for row in choice.problem.operation.rows]
                choice.settle(random.choice([name for name in rows if choice.can_run(name)]))
            else:
                choice.settle(random.choice(("native", "native", "pytorch")))
        program.bind_anew()

    return settle


@contextmanager
def of_any_size() -> Iterator[None]:
    """Let rows of operations compute small calls too."""
    limits: list[tuple[Any, str]] = [
        (softmax, "LEAST"),
        (activation, "LEAST"),
        (activation, "LEAST_TANH"),
        (layer_norm_problem, "LEAST"),
        *((one, "least") for one in table.OPERATIONS),
    ]
    with ExitStack() as stack:
        for holder, name in limits:
            stack.enter_context(mock.patch.object(holder, name, 1))
        yield


def complaint(model: nn.Module, example: Tensor, random: Random) -> str:
    """Return what is wrong with the plan of a model; nothing if all is right.

    A plan is wrong if `optimize` refuses it, or warns of a kernel, or if its results are farther
    from float64 than rounding explains.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with mock.patch.object(optimized, "tune", settled_by(random)), of_any_size():
                plan = bt.optimize(model, (example,))
        except BestofError as error:
            return f"refused: {str(error)[:300]}"
    told = [str(one.message)[:300] for one in caught if issubclass(one.category, BestofWarning)]
    return f"warned: {told[0]}" if told else _error(plan, model, example)


def _error(plan: nn.Module, model: nn.Module, example: Tensor) -> str:
    """Return how far the results of a plan are from float64, if that is beyond the bound."""
    doubled = copy.deepcopy(model).double()
    given = example.double().contiguous()
    with torch.no_grad():
        right, got, theirs = doubled(given), plan(example), model(example)
    off = _distance(got, right)
    unit = float(torch.finfo(got.dtype).eps)
    rounded = unit * rms(right[torch.isfinite(right)])
    if off <= 4 * max(rounded, _distance(theirs, right)):
        return ""
    spread = max(
        math.sqrt(sum(one * one for one in distances) / _RUNS)
        for distances in (
            [
                _distance(_with_errors(doubled, given, unit, seed, alike), right)
                for seed in range(_RUNS)
            ]
            for alike in (False, True)
        )
    )
    if off <= _QUANTILE * spread + 4 * rounded:
        return ""
    own = _distance(theirs, right)
    return f"off by {off:.3g} rms, for {_QUANTILE * spread:.3g}; the model by {own:.3g}"


def _distance(got: Tensor, right: Tensor) -> float:
    same, off = differences(got.double(), right)
    return rms(off) if same and off.numel() else (0.0 if same else math.inf)


def _with_errors(model: nn.Module, x: Tensor, unit: float, seed: int, alike: bool) -> Tensor:
    with torch.no_grad(), _Errors(unit, seed, alike):
        y: Tensor = model(x)
    return y


class _Errors(TorchDispatchMode):
    """Errs in the operands and the results of each operator as the plan may.

    Operands err by a rounding each, which is what sums of them that cancel show. A product errs by
    as much as Winograd's, relative to the rms of its sums. alike: errors are the same in all
    places but those of one channel.
    """

    def __init__(self, unit: float, seed: int, alike: bool) -> None:
        super().__init__()
        self._unit, self._alike = unit, alike
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view or func in (_aten.clone.default, _aten._to_copy.default):
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return func(*args, **kwargs)
        args = pytree.tree_map_only(Tensor, self._rounded, args)
        out = func(*args, **kwargs)
        if func in _PRODUCTS:
            squares = pytree.tree_map_only(Tensor, torch.square, args)
            size = rms(func(*squares, **kwargs).sqrt())
            return out + self._signs(out) * size * max(_WINOGRAD, self._unit)
        return pytree.tree_map_only(Tensor, self._rounded, out)

    def _rounded(self, value: Tensor) -> Tensor:
        if value.dtype is not torch.float64 or not value.numel():
            return value
        size = rms(value[torch.isfinite(value)])
        # Elements round relative to themselves; larger ones may stand beside them in a sum.
        return value + self._signs(value) * self._unit * (value.abs() + size) / 2

    def _signs(self, value: Tensor) -> Tensor:
        shape = list(value.shape)
        if self._alike and len(shape) > 1:
            shape = [one if place == 1 else 1 for place, one in enumerate(shape)]
        drawn = torch.randint(0, 2, shape, generator=self._generator)
        return (2 * drawn - 1).to(value.dtype)
