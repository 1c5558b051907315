"""Operations whose rows round differently: float64 decides which result is wrong."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestof.torch.ops.bound import ErrorBound
from bestof.torch.ops.comparison import Finding, Scale, Side, compare
from bestof.torch.ops.operation import Call, Operation
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.row import P, Row

UNIT = 2.0**-24
"""The error of one rounding to float32."""


def units(number: float) -> ErrorBound:
    """Return a bound of each element's error, in units of float32."""
    return ErrorBound(number * UNIT, number * UNIT)


class Part(NamedTuple):
    """Of one result: what errors are relative to, and what PyTorch and other rows promise."""

    scale: Scale
    pytorch: ErrorBound
    row: ErrorBound


class RoundingOperation(Operation[P]):
    """An operation of which PyTorch's own kernel computes float64 too.

    Results may differ by what the rows promise, relative to the magnitudes of the terms.
    """

    @abstractmethod
    def parts(self, call: Call, expected: Sequence[Tensor | None]) -> Sequence[Part]:
        """Return the scales and bounds of all results, of which None has any."""

    def compare(
        self, row: Row[P], original: Kernel, args: tuple[Any, ...], expected: Any, got: Any
    ) -> Finding:
        """Return which of two results is wrong. Not-a-number and infinities count as one."""
        call, rights = Call(args[0], args[1:]), _tuple(expected)
        parts, wide = self.parts(call, rights), _Wide(self.rows[0], original, call)
        tells = True
        for k, (right, mine, part) in enumerate(zip(rights, _tuple(got), parts, strict=True)):
            if right is None or mine is None:
                continue
            found = compare(
                Side(_marked(mine), self._bound(row, args[0], part)),
                Side(_marked(right), part.pytorch),
                part.scale,
                lambda k=k: _marked(wide.result(k)),  # type: ignore[misc]
            )
            if found.wrong is not None or found.reference_wrong is not None:
                return found
            tells = tells and found.tells
        return Finding(tells=tells)

    def _bound(self, row: Row[P], problem: P, part: Part) -> ErrorBound:
        if row.bound is not None:
            return row.bound(problem)
        return part.pytorch if row is self.rows[0] else part.row

    def tolerance(self, _row: Row[P], _problem: P, *_operands: Any) -> Tensor:
        """Return 0: a kernel gives the same bits wherever its operands lie."""
        return torch.zeros(())


class _Wide:
    """PyTorch's own results in float64, computed when the first is needed."""

    def __init__(self, first: Row[Any], original: Kernel, call: Call) -> None:
        self._first, self._original, self._call = first, original, call
        self._results: Sequence[Tensor | None] | None = None

    def result(self, k: int) -> Tensor:
        if self._results is None:
            operands = [None if one is None else one.double() for one in self._call.operands]
            self._results = _tuple(
                self._first.function(self._original, self._call.problem, *operands)
            )
        found = self._results[k]
        assert found is not None
        return found


def _tuple(result: Any) -> Sequence[Tensor | None]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def _marked(result: Tensor) -> Tensor:
    """Return a result in which every infinity is NaN.

    Of a row with an infinity, some formulas give an infinity where others give NaN.
    """
    finite = torch.isfinite(result)
    return result if bool(finite.all()) else torch.where(finite, result, torch.nan)
