"""One pass of 2-D convolutions as an operation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from bestof.kernels import has_wide_vectors
from bestof.selection.state.journal import Entry
from bestof.torch.backends.device import CPU, Device
from bestof.torch.ops.bound import TF32_INSIDE, ErrorBound, float32_inside, summation_bound
from bestof.torch.ops.combination import LEAST, numbers_for
from bestof.torch.ops.comparison import (
    Finding,
    Scale,
    Side,
    compare,
    overflowed,
    own_sums,
    root,
)
from bestof.torch.ops.convolution.channels_last import is_right_as_is
from bestof.torch.ops.convolution.direction import Direction, Pass
from bestof.torch.ops.convolution.estimate import (
    MARGIN,
    SMALL,
    WINOGRAD_CHANNELS,
    WINOGRAD_MARGIN,
    operand_bytes,
)
from bestof.torch.ops.convolution.native import EAGER
from bestof.torch.ops.convolution.neighbourhood import Neighbourhood
from bestof.torch.ops.convolution.overruns import Overruns
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.promise import sums
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv, pytorch_conv
from bestof.torch.ops.convolution.refused import Refused
from bestof.torch.ops.convolution.table import rows_of
from bestof.torch.ops.dtypes import own
from bestof.torch.ops.onednn import sums_in_float32
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.search_settings import BY_PYTHON, BY_PYTHON_ON_DEVICE, PATIENCE, RACE

_WINOGRAD = frozenset(
    f"native {row.name}" for row in EAGER if (row.kernel, row.stride) == ((3, 3), 1)
)
_FORMERLY = ("bestof:pass_selector.<locals>.bind.<locals>.<lambda>",)


class Conv2dPass(Operation[ConvProblem]):
    """One pass of 2-D convolutions on one kind of device.

    The override of `aten::convolution` and its backward asks for it, because the three passes of a
    layer are chosen together. A row is promising if its estimate is not far above the cheapest one.
    """

    direction: ClassVar[Direction]
    part = True
    patience = PATIENCE

    def __init__(self, device: Device = CPU, rows: Sequence[Pass] | None = None) -> None:
        """rows: the first one is PyTorch's own kernel; those of the table by default."""
        self.device = device
        self.name = f"{device.prefix}convolution {self.direction}"
        self.rows = tuple(
            self._among_others(row)
            for row in (rows_of(self.direction, device.key) if rows is None else rows)
        )
        seconds = BY_PYTHON if device is CPU else BY_PYTHON_ON_DEVICE
        by_python = [row.name for row in self.rows[1:] if row.compiled is None]
        self.race = replace(RACE, handicaps=tuple((name, seconds) for name in by_python))
        self._overruns = Overruns(self.estimates)
        self._refused = Refused()

    @property
    def label(self) -> str:
        """The pass, on the CPU without further words."""
        return self.name.removeprefix("convolution ")

    def original(self, _kernels: Sequence[Any]) -> PyTorchConv:
        """Return PyTorch's own kernels of both operators."""
        return replace(pytorch_conv(self.device.key), refused=self._refused)

    def arguments(self, _operator: str, _given: tuple[Any, ...]) -> None:
        """Leave plans to their own layers. What those do not take is PyTorch's, bit for bit."""
        return None

    def neighbours(self) -> Callable[[Hashable], Iterable[Hashable]]:
        """Return the function to the same layer with other batches, and images of other sizes."""
        return Neighbourhood[Any](lambda problem: problem)

    def hopeless(self, row: Pass) -> Callable[[Hashable], bool] | None:
        """Return the function that tells whether trials of similar layers speak against a row."""
        return None if row is self.rows[0] else partial(self._overruns.is_hopeless, row.name)

    def unpromising(self, row: Pass, problem: ConvProblem) -> str:
        """Return how far the estimate of a row is above the cheapest one."""
        ratio = _estimates(self, problem)[row.name] / self.cheapest(problem)
        return f"estimated at {ratio:.1f} times the cheapest"

    def refused(self, problem: ConvProblem) -> int:
        """Return how many calls rows have left to PyTorch's own kernel: an element stood out."""
        return self._refused.calls(problem)

    def listen(self, entry: Entry) -> None:
        """Learn from trials which rows are too slow on similar layers."""
        self._overruns.listen(entry)

    def operand_bytes(self, problem: ConvProblem) -> float:
        """Return the bytes of the input and the output."""
        return operand_bytes(problem)

    def layer_of(self, problem: ConvProblem) -> Hashable:
        """Return the convolution without what differs between its passes."""
        return problem._replace(bias=False, grad_layout="", frozen=False)

    def applying(self, problem: ConvProblem) -> tuple[Pass, ...]:
        """Return the rows that support a problem at its level of accuracy."""
        return tuple(row for row in self.rows if row.can_run(problem))

    def promising(self, problem: ConvProblem) -> frozenset[str]:
        """Return the names of the rows that apply and may win.

        These are the first one, those without an estimate, and those whose estimate is at most
        MARGIN times the cheapest one or below SMALL. Where Winograd wins, WINOGRAD_MARGIN holds for
        the other algorithms.
        """
        estimated = _promising(self, problem)
        return frozenset(
            row.name
            for row in self.applying(problem)
            if row.estimate is None or row.name in estimated
        )

    def _among_others(self, row: Pass) -> Pass:
        """Return a row that is promising if its estimate, if it has one, is low among others."""
        if row.estimate is None:
            return replace(row, formerly=_FORMERLY)
        return replace(row, promising=partial(self._is_promising, row.name), formerly=_FORMERLY)

    def _is_promising(self, name: str, problem: ConvProblem) -> bool:
        """Return whether the estimate of a row is low enough."""
        return name in _promising(self, problem)

    def winograd_wins(self, problem: ConvProblem) -> bool:
        """Return whether a Winograd algorithm is estimated to be cheapest, and can be trusted.

        The estimate is trusted from WINOGRAD_CHANNELS channels and filters on, where the
        instruction set is AVX2 or better: only those were measured. Programs without a plan and
        plans both ask this: the plan then tries one native kernel that computes every product. On
        78 random frozen layers of 2x2 pixels, where Winograd is least ahead, the others beat all
        that remained by at most 7 %, and by none in the median (AVX-512, one thread).
        """
        estimates = _estimates(self, problem)
        return (
            min(estimates, key=estimates.__getitem__, default="") in _WINOGRAD
            and min(problem.weight_shape[:2]) >= WINOGRAD_CHANNELS
            and has_wide_vectors()
        )

    def estimates(self, problem: ConvProblem) -> Mapping[str, float]:
        """Return the estimates of the rows that apply and have one, by name."""
        return _estimates(self, problem)

    def cheapest(self, problem: ConvProblem) -> float:
        """Return the lowest estimate of the rows that apply."""
        return min(_estimates(self, problem).values())

    def as_is(self, problem: ConvProblem) -> float:
        """Return the estimate of PyTorch's own kernel."""
        return _estimates(self, problem)[self.rows[0].name]

    def bound(self, row: Pass, problem: ConvProblem) -> ErrorBound:
        """Return the error that a row promises for a problem.

        Sums of bfloat16 and float16 products are taken in float32 and rounded once. PyTorch's own
        kernels do so if `sums_in_float32`, and promise nothing elsewhere.
        """
        return self._sums_bound(row, problem).rounded(problem.dtype)

    def _sums_bound(self, row: Pass, problem: ConvProblem) -> ErrorBound:
        if row.bound is None:  # PyTorch's own kernels or its matrix products do the sums
            return summation_bound(prod(sums(problem, self.direction)), own(problem.dtype).sums)
        return row.bound(problem)

    def compare(
        self,
        row: Pass,
        original: PyTorchConv,  # type: ignore[override]
        args: tuple[Any, ...],
        expected: Tensor,
        got: Tensor,
    ) -> Finding:
        """Return which result is wrong; the row need not be one of the operation's own.

        The scale of errors comes from sums of squares of the operands: they bound the magnitudes of
        all terms, and take two passes over the operands.
        """
        problem, *tensors = args
        first = self.rows[0]

        def exact() -> Tensor:
            wide = [None if one is None else one.double() for one in tensors]
            result: Tensor = first.function(original, problem._replace(dtype="float64"), *wide)
            return overflowed(result, expected.dtype)

        return compare(
            self._side(got, row, problem),
            self._side(expected, first, problem),
            self.scale(problem, tensors),
            exact,
        )

    def _side(self, result: Tensor, row: Pass, problem: ConvProblem) -> Side:
        """Return a result with the error of its sums, which are taken in float32 or wider."""
        bound = self._sums_bound(row, problem)
        if row.bound is None and not sums_in_float32(problem.dtype):
            return Side(result, bound, own_sums(result.dtype))
        if "tf32" in problem.device:
            bound = bound.plus(TF32_INSIDE)
        if row.bound is None and problem.dtype == "float32" and not problem.device:
            bound = bound.plus(float32_inside())
        return Side(result, bound)

    def numbers(self, smaller: ConvProblem, parts: int) -> Tensor | None:
        """Return the numbers that combine the parts of a result; None if all are to be computed.

        smaller: the problem of the combination. oneDNN may compute it by another kernel than the
        whole call, and some of its kernels for channels last write outside their memory.
        """
        if self.device is not CPU or smaller.dtype != "float32" or parts < LEAST:
            return None
        return numbers_for(parts) if is_right_as_is(smaller, self.direction) else None

    @abstractmethod
    def scale(self, problem: ConvProblem, tensors: Sequence[Tensor | None]) -> Scale:
        """Return what errors of results are relative to, for these operands."""


def one_image(problem: ConvProblem) -> ConvProblem:
    """Return the convolution of one image."""
    return problem._replace(input_shape=(1, *problem.input_shape[1:]))


def mean(terms: Tensor, shape: Sequence[int]) -> float:
    """Return the root of the mean over the results of a shape, from a sum of squares."""
    return root(terms.sum() / prod(shape))


def example() -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """Return an input and a weight of a 3x3 layer of ResNet34, and the geometry."""
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(2, 64, 28, 28, generator=numbers)
    w = torch.randn(64, 64, 3, 3, generator=numbers)
    return x, w, ((1, 1), (1, 1), (1, 1), False, (0, 0), 1)


@lru_cache(maxsize=1024)
def _estimates(operation: Conv2dPass, problem: ConvProblem) -> dict[str, float]:
    # Rows of a program have no estimate, and their questions may raise: the selector asks them.
    rows = [row for row in operation.rows if row.estimate is not None and row.can_run(problem)]
    return {row.name: row.estimate(problem) for row in rows}  # type: ignore[misc]  # as above


@lru_cache(maxsize=1024)
def _promising(operation: Conv2dPass, problem: ConvProblem) -> frozenset[str]:
    estimates = _estimates(operation, problem)
    lowest = min(estimates.values(), default=0.0)
    limit = max(MARGIN * lowest, SMALL)
    others = limit
    if operation.winograd_wins(problem):
        others = max(WINOGRAD_MARGIN * lowest, SMALL)
    return frozenset(
        name
        for name, estimate in estimates.items()
        if name == operation.rows[0].name or estimate <= (limit if name in _WINOGRAD else others)
    )
