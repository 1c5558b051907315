"""Compares the first result of each row of an operation with that of PyTorch's own kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from bestof.torch.ops.comparison import Finding
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.originals import Original
from bestof.torch.ops.row import Row
from bestof.torch.rows.row_verifier import RowVerifier


class OperationVerifier(RowVerifier):
    """A verifier for every operation: the operation says which result is wrong."""

    def __init__(
        self,
        operation: Operation[Any],
        original: Original,
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

    def compare(
        self, alternative: str, _stage: int, args: tuple[Any, ...], expected: Any, got: Any
    ) -> Finding:
        """Return which of two results is wrong."""
        row = self._rows[alternative]
        return self._operation.compare(row, self._original, args, expected, got)
