"""Compares the first result of each row of an operation with that of PyTorch's own kernel."""

from __future__ import annotations

from typing import Any

from bestof.torch.comparison import Finding
from bestof.torch.ops.operation import Operation, Original
from bestof.torch.row_verifier import RowVerifier


class OperationVerifier(RowVerifier):
    """A verifier for every operation: the operation says which result is wrong."""

    def __init__(self, operation: Operation[Any], original: Original) -> None:
        super().__init__(operation.rows[0].name)
        self._operation, self._original = operation, original
        self._rows = {row.name: row for row in operation.rows}

    def run(self, alternative: str, _stage: int, args: tuple[Any, ...]) -> Any:
        """Return what a row computes."""
        return self._rows[alternative].function(self._original, *args)

    def compare(
        self, alternative: str, _stage: int, args: tuple[Any, ...], expected: Any, got: Any
    ) -> Finding:
        """Return which of two results is wrong."""
        return self._operation.compare(self._rows[alternative], args[0], expected, got)
