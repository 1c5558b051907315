"""The selector of the rows of an operation, which eager calls and plans share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bestof.selection import Alternative, BestOf, UnlessShared
from bestof.selection.state.journal import DecisionEntry, Entry, TrialEntry
from bestof.torch.backends.depends import DEPENDS
from bestof.torch.backends.device import CPU
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.originals import kernels_of
from bestof.torch.ops.row import Row
from bestof.torch.ops.search import SEARCHES
from bestof.torch.process.allocator import hand_back_unused
from bestof.torch.rows.left_out import LeftOut
from bestof.torch.rows.operation_verifier import OperationVerifier

# From this size of the operands on, what trials have freed is returned to the system once a problem
# is decided. Freed pieces seldom fit the next ones exactly, so copies of several rows lie side by
# side: convolutions of 32 channels of 900 x 900 numbers took 300 MiB more than the winner needs.
_LARGE_BYTES = 64 * 2**20


class RowSelector:
    """The rows of an operation, PyTorch's own kernels of it, and what is known of both.

    The process has one for each operation. What eager calls have learnt of a problem holds in
    plans, and the other way round.

    selector: called with a problem and its operands.
    verifier: compares results of rows with PyTorch's.
    listeners: called with each entry of the journal that is no trial.
    """

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation
        self.kernels = kernels_of(operation.operators, operation.device.key)
        self.original: Any = operation.original(self.kernels)
        self.rows = {row.name: row for row in operation.rows}
        self.verifier = OperationVerifier(operation, self.original)
        self.listeners: list[Callable[[Entry], object]] = []
        self.selector = BestOf(
            operation.name,
            [
                Alternative(
                    row.name,
                    partial(row.function, self.original),
                    (*DEPENDS, *operation.device.depends()),
                    supports=row.can_run,
                    hopeless=operation.hopeless(row),
                    formerly=row.formerly,
                    unpromising=LeftOut(operation, row),
                )
                for row in operation.rows
            ],
            lambda problem, *_: problem,
            check=self.verifier,
            on_event=self._listen,
            timer=operation.device.timer,
            policy=UnlessShared(operation.race),
            neighbours=operation.neighbours(),
            patience=operation.patience,
            max_searches=SEARCHES,
        )

    def chosen(self, problem: Any) -> Row[Any] | None:
        """Return the row that was chosen for a problem; None if it is undecided."""
        name = self.selector.chosen(problem)
        return None if name is None else self.rows[name]

    def _listen(self, entry: Entry) -> None:
        self.operation.listen(entry)
        if isinstance(entry, TrialEntry):
            return
        for listener in self.listeners:
            listener(entry)
        if isinstance(entry, DecisionEntry):
            self.operation.decided(entry.problem, self.selector.best_name)
            is_measured = self.operation.device is CPU and entry.source == "measured"
            if is_measured and self.operation.operand_bytes(entry.problem) >= _LARGE_BYTES:
                hand_back_unused()


def row_selector(operation: Operation[Any]) -> RowSelector:
    """Return the selector of an operation, made at the first question.

    It keeps the kernels that are in place then. So ask before any kernel of bestof is registered
    for the operators.
    """
    found = vars(operation).get("_row_selector")
    if found is None:
        found = vars(operation).setdefault("_row_selector", RowSelector(operation))
    assert isinstance(found, RowSelector)
    return found
