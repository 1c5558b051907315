"""The selector of the rows of an operation, which eager calls and plans share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from bestof.selection import Alternative, BestOf, Race, UnlessShared
from bestof.selection.interrupts import reraise_from_outside
from bestof.selection.state.journal import DecisionEntry, Entry, TrialEntry
from bestof.selection.trials.circumstances import raised
from bestof.torch.backends.depends import DEPENDS
from bestof.torch.backends.device import CPU
from bestof.torch.ops.memory_bound import reserve
from bestof.torch.ops.operation import Operation
from bestof.torch.ops.pytorch_kernel import kernels_of
from bestof.torch.ops.row import Row
from bestof.torch.ops.search_settings import BY_PYTHON, SEARCHES
from bestof.torch.process.fork_lock import ForkLock
from bestof.torch.process.freed_memory import hand_back_unused
from bestof.torch.rows.call_counts import CallCounts
from bestof.torch.rows.offer import offered
from bestof.torch.rows.operation_verifier import OperationVerifier
from bestof.torch.rows.unpromising import Unpromising

# From this size of the operands on, what trials have freed is returned to the system once a problem
# is decided. Freed pieces seldom fit the next ones exactly, so copies of several rows lie side by
# side: convolutions of 32 channels of 900 x 900 numbers took 300 MiB more than the winner needs.
_LARGE_BYTES = 64 * 2**20


class RowSelector:
    """The rows of an operation, PyTorch's own kernels of it, and what is known of both.

    The process has one for each operation. What eager calls have learnt of a problem holds in
    plans, and the other way round.

    selector: called with a problem and its operands. It chooses among the rows of `offer.py`.
    rows: by name. Those that were taken out stay: plans that are bound to them run on.
    calls: counts of calls, but for those of plans.
    verifier: compares results of rows with PyTorch's.
    listeners: called after each entry of the journal that is no trial, and when the rows change.
    """

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation
        self.kernels = kernels_of(operation.operators, operation.device.key)
        self.original: Any = operation.original(self.kernels)
        self.rows: dict[str, Row[Any]] = {}
        self.calls: CallCounts[Any] = CallCounts()
        self.verifier = OperationVerifier(operation, self.original, self.rows)
        self.listeners: list[Callable[[], object]] = []
        self._lock = ForkLock()
        self._offered = offered(operation)
        self.selector = BestOf(
            operation.name,
            self._alternatives(),
            lambda problem, *_: problem,
            check=self.verifier,
            on_event=self._listen,
            timer=operation.device.timer,
            policy=UnlessShared(self._race()),
            neighbours=operation.neighbours(),
            patience=operation.patience,
            max_searches=SEARCHES,
        )

    def choose_offered(self) -> None:
        """Choose among the rows that the operation has and the configuration leaves, from now on.

        Evidence stays. Problems are searched again at their next calls if they lack evidence.
        """
        with self._lock:
            found = offered(self.operation)
            if found == self._offered:
                return
            self._offered = found
            policy = UnlessShared(self._race())
            self.selector.choose_among(self._alternatives(), policy=policy)
        for listener in self.listeners:
            listener()

    def _alternatives(self) -> list[Alternative]:
        """Return the offered rows as alternatives; ordered ones are tried wherever they can run."""
        operation, (rows, is_order, _) = self.operation, self._offered
        self.rows.update((row.name, row) for row in rows)
        return [
            Alternative(
                row.name,
                self._function(row),
                (*DEPENDS, *operation.device.depends()),
                supports=row.can_run,
                hopeless=None if is_order else operation.hopeless(row),
                formerly=row.formerly,
                estimate=row.estimate,
                unpromising=Unpromising(operation, row, is_order=is_order),
            )
            for row in rows
        ]

    def _function(self, row: Row[Any]) -> Callable[..., Any]:
        if not row.registered:
            return partial(row.function, self.original)
        # Identities of alternatives are read from partials: the function must be an argument.
        return partial(_by_program, self, row.name, row.function, self.original)

    def _race(self) -> Race:
        """Return how rows are compared. Python runs registered ones, which costs each call."""
        race = self.operation.race
        own = tuple((row.name, BY_PYTHON) for row in self._offered.rows if row.registered)
        return replace(race, handicaps=(*race.handicaps, *own))

    def chosen(self, problem: Any) -> Row[Any] | None:
        """Return the row that was chosen for a problem; None if the problem is undecided."""
        name = self.selector.chosen(problem)
        return None if name is None else self.rows[name]

    def _listen(self, entry: Entry) -> None:
        self.operation.listen(entry)
        if isinstance(entry, TrialEntry):
            return
        for listener in self.listeners:
            listener()
        if isinstance(entry, DecisionEntry):
            row = self.rows[entry.alternative]
            reserve(self.operation.scratch(row, entry.problem))  # an order did not ask
            self.operation.decided(entry.problem, self.selector.best_name)
            is_measured = self.operation.device is CPU and entry.source == "measured"
            if is_measured and self.operation.operand_bytes(entry.problem) >= _LARGE_BYTES:
                hand_back_unused()


def _by_program(
    rows: RowSelector,
    name: str,
    function: Callable[..., Any],
    original: Any,
    problem: Any,
    *operands: Any,
) -> Any:
    """Run a program's own row. If it raises in a settled call, PyTorch's own kernel answers."""
    try:
        return function(original, problem, *operands)
    except Exception as error:
        reraise_from_outside()
        selector = rows.selector
        if selector.chosen(problem) != name or not selector.give_up(problem, raised(error)):
            raise
        return rows.operation.rows[0].function(original, problem, *operands)


def renew_selector(operation: Operation[Any]) -> None:
    """Let the selector of an operation, if there is one, choose among the rows offered now."""
    found = _made(operation)
    if found is not None:
        found.choose_offered()


def original_of(operation: Operation[Any]) -> Any:
    """Return PyTorch's own kernels of an operation, as its rows take them; makes no selector."""
    found = _made(operation)
    if found is not None:
        return found.original
    return operation.original(kernels_of(operation.operators, operation.device.key))


def _made(operation: Operation[Any]) -> RowSelector | None:
    return vars(operation).get("_row_selector")


def row_selector(operation: Operation[Any]) -> RowSelector:
    """Return the selector of an operation, made at the first question.

    The selector keeps the kernels that are in place at this moment. So ask before any kernel of
    bestof is registered for the operators.
    """
    found = _made(operation)
    if found is None:
        found = vars(operation).setdefault("_row_selector", RowSelector(operation))
    assert isinstance(found, RowSelector)
    return found
