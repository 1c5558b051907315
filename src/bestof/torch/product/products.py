"""The selector of matrix products, and what it has chosen at present."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from bestof.selection import Alternative, BestOf, unless_shared
from bestof.selection.state.journal import DecisionEntry, Entry, TrialEntry
from bestof.torch.depends import DEPENDS
from bestof.torch.dispatch.call_counts import CallCounts
from bestof.torch.dispatch.search import BY_PYTHON, PATIENCE, RACE, SEARCHES
from bestof.torch.product.neighbourhood import Neighbourhood
from bestof.torch.product.originals import Originals
from bestof.torch.product.problem import ProductProblem
from bestof.torch.product.row import Row
from bestof.torch.product.table import ROWS, applies
from bestof.torch.product.verifier import ProductVerifier

_NAME = "product"
# Where MKL is at its peak, other rows come within a few percent of it. In a race with a tie of 3 %
# on a busy Cascade Lake Xeon, noise chose a kernel that was 5 % slower. With 8 %, a row must be 4 %
# faster than PyTorch's own kernel after all trials.
_TIE = 0.08
_TRIALS = 12
# Trials find the code and the operands out of the caches, which settled calls do not. 8 rows by
# weights of 512 x 512 took 175 us by PyTorch and 160 us by few_rows in trials, but 82 and 92 us
# once settled (two threads of a Cascade Lake Xeon). A row must also be faster by so many seconds.
_BY_COLD_CACHES = 20e-6


class Products:
    """One selector for all products of the process, with the calls of each problem.

    Calls with equal problems share evidence and decision. `forget` is called after every decision,
    for what else remembers decisions. The first of `rows` is PyTorch's own kernel.
    """

    def __init__(self, originals: Originals, rows: Sequence[Row] = ROWS) -> None:
        self.calls: CallCounts[ProductProblem] = CallCounts()
        self.forget: Callable[[], object] = lambda: None
        self._originals = originals
        self._rows = {row.name: row for row in rows}
        handicaps = tuple(
            (row.name, BY_PYTHON if row.compiled is None else _BY_COLD_CACHES) for row in rows[1:]
        )
        race = replace(RACE, tie=_TIE, max_trials=_TRIALS, handicaps=handicaps)
        self.selector = BestOf(
            _NAME,
            [
                Alternative(row.name, self._bind(row), DEPENDS, supports=_Applies(row))
                for row in rows
            ],
            lambda problem, *_: problem,
            check=ProductVerifier(originals, rows),
            on_event=self._listen,
            policy=unless_shared(race),
            neighbours=Neighbourhood(),
            patience=PATIENCE,
            max_searches=SEARCHES,
        )

    def __call__(
        self, problem: ProductProblem, bias: Tensor | None, a: Tensor, b: Tensor
    ) -> Tensor:
        """Return A B, plus the bias, by the selector."""
        return self.selector(problem, bias, a, b)  # type: ignore[no-any-return]

    def as_is(self, operation: str, bias: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
        """Return A B, plus the bias, by PyTorch's own kernel."""
        return self._originals(operation, bias, a, b)

    def by(
        self, row: Row, problem: ProductProblem, bias: Tensor | None, a: Tensor, b: Tensor
    ) -> Tensor:
        """Return A B, plus the bias, by one alternative."""
        return row.function(self._originals, problem, bias, a, b)

    def chosen(self, problem: ProductProblem) -> Row | None:
        """Return the row that was chosen for a problem; None if it is undecided."""
        name = self.selector.chosen(problem)
        return None if name is None else self._rows[name]

    def _bind(self, row: Row) -> Callable[..., Tensor]:
        return partial(self.by, row)

    def _free(self, problem: ProductProblem) -> None:
        """Free what trials have packed, unless a decision needs matrices of this shape."""
        if not problem.frozen:
            return
        shape = (problem.k, problem.n)
        chosen: dict[Any, str] = self.selector.best_name
        for other, name in chosen.items():
            if self._rows[name].packs and (other.k, other.n) == shape:
                return
        self._originals.packed.drop(shape)

    def _listen(self, entry: Entry) -> None:
        if isinstance(entry, TrialEntry):
            return
        self.forget()
        if isinstance(entry, DecisionEntry):
            problem: Any = entry.problem
            self._free(problem)


class _Applies:
    """Tells for which problems a row is tried, at most `row.shapes` of them.

    The selector asks when it opens a problem, with its lock held.
    """

    def __init__(self, row: Row) -> None:
        self._row = row
        self._problems: set[ProductProblem] = set()

    def __call__(self, problem: Any) -> bool:
        row = self._row
        if not applies(row, problem):
            return False
        if row.shapes is None or problem in self._problems:
            return True
        if len(self._problems) >= row.shapes:
            return False
        self._problems.add(problem)
        return True
