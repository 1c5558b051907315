"""Compares the first result of each row of an operation with that of PyTorch's own kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from bestof.selection import Verdict
from bestof.selection.interrupts import reraise_from_outside
from bestof.torch.ops.combination import Combination
from bestof.torch.ops.comparison import Finding
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.row import Row
from bestof.torch.rows.row_verifier import Expected, RowVerifier, memory_of, wrong_strides


class OperationVerifier(RowVerifier):
    """A verifier for every operation: the operation says which result is wrong."""

    def __init__(
        self,
        operation: Operation[Any],
        original: Kernel,
        rows: Mapping[str, Row[Any]] | None = None,
    ) -> None:
        """rows: by name, if they may change; those of the operation by default."""
        super().__init__(operation.rows[0].name)
        self._rows = {row.name: row for row in operation.rows} if rows is None else rows
        self._operation, self._original = operation, original

    def run(self, alternative: str, _stage: int, args: tuple[Any, ...]) -> Any:
        """Return what a row computes."""
        return self._rows[alternative].function(self._original, *args)

    def operands(self, _stage: int, args: tuple[Any, ...]) -> Sequence[Tensor | None]:
        """Return the tensors of a call."""
        return args[1 : len(args) - self._operation.others]

    def replaced(
        self, _stage: int, args: tuple[Any, ...], operands: Sequence[Tensor | None]
    ) -> tuple[Any, ...]:
        """Return the call with other tensors."""
        return self._operation.replaced(args, operands)

    def combination(self, _stage: int, args: tuple[Any, ...]) -> Combination | None:
        """Return a smaller call that tells whether a result is right; None without one."""
        return self._operation.combination(args)

    def judge(
        self, alternative: str, stage: int, args: tuple[Any, ...], expected: Expected, got: Any
    ) -> Verdict:
        """Return the verdict on a result of a row. A program's own row must also be well made."""
        found = super().judge(alternative, stage, args, expected, got)
        if found.wrong is None and found.tells and self._rows[alternative].registered:
            wrong = self._wrong_make(alternative, stage, args, expected, got)
            if wrong is not None:
                return Verdict(self.answer(expected), wrong)
        return found

    def _wrong_make(
        self, alternative: str, stage: int, args: tuple[Any, ...], expected: Expected, got: Any
    ) -> str | None:
        """Return whether results lie otherwise than PyTorch's, or where the next call writes."""
        strides = wrong_strides(expected.result, got)
        if strides:
            return strides[0]
        try:
            again = self.run(alternative, stage, args)
        except Exception as error:
            reraise_from_outside()
            return f"a second call raised {type(error).__name__}: {error}"
        if not memory_of(got).isdisjoint(memory_of(again)):
            return "a second call overwrites the results of the first"
        return None

    def compare(
        self, alternative: str, _stage: int, args: tuple[Any, ...], expected: Any, got: Any
    ) -> Finding:
        """Return which of two results is wrong."""
        row = self._rows[alternative]
        return self._operation.compare(row, self._original, args, expected, got)
