"""Compares results of products with PyTorch's own, within what each row promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from bestof.torch.comparison import Finding, Scale, Side, compare, energies, root
from bestof.torch.product.originals import Originals
from bestof.torch.product.row import Row
from bestof.torch.row_verifier import RowVerifier


class ProductVerifier(RowVerifier):
    """Compares the results of products; a call is (problem, bias, a, b).

    `rows` are the alternatives, PyTorch's own kernel first.
    """

    def __init__(self, originals: Originals, rows: Sequence[Row]) -> None:
        super().__init__(rows[0].name)
        self._originals = originals
        self._rows = {row.name: row for row in rows}

    def run(self, alternative: str, _stage: int, args: tuple[Any, ...]) -> Tensor:
        """Return what a row computes."""
        return self._rows[alternative].function(self._originals, *args)

    def compare(
        self, alternative: str, _stage: int, args: tuple[Any, ...], expected: Tensor, got: Tensor
    ) -> Finding:
        """Return which result is wrong."""
        problem, bias, a, b = args

        def in_float64() -> Tensor:
            wide = None if bias is None else bias.double()
            return self._originals(problem.operation, wide, a.double(), b.double())

        return compare(
            Side(got, self._rows[alternative].bound_of(problem)),
            Side(expected, self._rows[self._first].bound_of(problem)),
            _scale(a, b),
            in_float64,
        )


def _scale(a: Tensor, b: Tensor) -> Scale:
    """Return the scale of results: the mean of the sums of squared terms is exact."""
    rows, columns = a.shape[-2], b.shape[-1]
    terms = energies(a, (-2,)) * energies(b, (-1,))
    mean = terms.sum(-1).mean() / (rows * columns)
    return Scale(root(mean), root(energies(a, (-1,)).max() * energies(b, (-2,)).max()))
