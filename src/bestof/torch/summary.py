"""Summarises tuning in this process: what was chosen, saved and spent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bestof.escaped import escaped
from bestof.html_table import html_table
from bestof.selection import BestOf
from bestof.selection.duration import duration
from bestof.selection.reports.report import ProblemReport
from bestof.selection.state.journal import TrialEntry
from bestof.selection.state.lock import current_lock
from bestof.torch.dispatch.convolution.override import ConvolutionOverride
from bestof.torch.dispatch.override import Override
from bestof.torch.dispatch.overrides import convolution_overrides, operation_overrides
from bestof.torch.enable import keeps_freed_memory, left_out, lowered_threads
from bestof.torch.ops.memory_bound import Held, held
from bestof.torch.ops.search_settings import PATIENCE
from bestof.torch.process.threads import Lowered

_AS_IS = "as is"
_HEADINGS = ("operation", "problem", "chosen", "calls", "before", "after")
_NUMBERS = {"calls", "before", "after"}


@dataclass(frozen=True, slots=True)
class PassSummary:
    """One problem of one pass of a convolution, or of another operation (`name`).

    `chosen` is None while the problem is unsettled. The seconds are medians of a call, by PyTorch's
    own kernel and by the chosen alternative; None if nothing was measured. `calls` counts the calls
    of this process by all alternatives. The chosen one left `refused` of them to PyTorch's own
    kernel because of their operands.
    """

    name: str
    problem: str
    chosen: str | None
    seconds_as_is: float | None
    seconds_chosen: float | None
    calls: int
    refused: int = 0

    @property
    def rare(self) -> bool:
        """Whether the problem is unsettled because it was met too seldom for a search.

        Examples are the last batch of an epoch and a short evaluation. Their first calls take the
        decision of a neighbour, if there is one.
        """
        return self.chosen is None and self.calls <= PATIENCE


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of tuning in this process.

    layers: distinct convolutions that were met in any pass.
    seconds_saved: by settled calls against PyTorch's own kernels, from the medians of both. It does
        not count what `memory.keep_freed` saves, because no trial measures that.
    seconds_tuning: what the trials took beyond calls of the chosen (or leading) alternative. If it
        is above `seconds_saved`, tuning was a loss so far.
    trials: timed calls.
    keeps_freed: whether freed memory stays in the process at present.
    left_out: operations that this PyTorch keeps although they are enabled, each with the reason.
    threads: how PyTorch's threads were lowered to what the process may use; None if they were not.
    held: the bytes of scratch, packed weights and kept matrices at present, and their bound.
    not_in_lock: problems of a locked run that took PyTorch's own kernel, as they were not recorded.
    """

    layers: int
    passes: tuple[PassSummary, ...]
    seconds_saved: float
    seconds_tuning: float
    trials: int
    keeps_freed: bool = False
    left_out: tuple[tuple[str, str], ...] = ()
    threads: Lowered | None = None
    not_in_lock: tuple[str, ...] = ()
    held: Held = field(default_factory=held)

    def __str__(self) -> str:
        """Return a table: a row for each problem, and what was saved and spent."""
        cells = [_HEADINGS, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                f"{cell:>{width}}" if heading in _NUMBERS else f"{cell:<{width}}"
                for cell, width, heading in zip(row, widths, _HEADINGS, strict=True)
            ).rstrip()
            for row in cells
        ]
        return "\n".join(map(escaped, [*lines, *self._notes()]))

    def _repr_html_(self) -> str:
        """Return the same table for notebooks."""
        return html_table("bestof", _HEADINGS, self._rows(), notes=self._notes())

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                one.name,
                one.problem,
                one.chosen or "unsettled",
                str(one.calls),
                duration(one.seconds_as_is),
                duration(one.seconds_chosen),
            )
            for one in self.passes
        ]

    def _notes(self) -> list[str]:
        saved = (
            f"saved {duration(self.seconds_saved)}, tuning cost {duration(self.seconds_tuning)} in "
            f"{self.trials} trials"
        )
        out = [f"{name} stays PyTorch's own: {why}" for name, why in self.left_out]
        return [saved, *out, *(f"not in the lock: {one}" for one in self.not_in_lock)]


def summary() -> Summary:
    """Return the summary of this process so far, also after `disable`.

    All numbers are zero if nothing was enabled.
    """
    return _summed(operation_overrides(), convolution_overrides())


def _summed(overrides: Iterable[Override], groups: Iterable[ConvolutionOverride]) -> Summary:
    """Return the summary of operations, and of choices for several of them together."""
    layers: set[Hashable] = set()
    total = _Evidence()
    for one in overrides:
        calls = one.calls.totals()
        layers.update(map(one.operation.layer_of, calls))
        total += _evidence(one, calls)
    lock = current_lock()
    for group in groups:
        loss, saved = group.sharing()
        total += _Evidence((), saved, loss, group.selector.trials)
    return Summary(
        len(layers - {None}),
        total.rows,
        total.saved,
        total.tuning,
        total.trials,
        keeps_freed_memory(),
        tuple(left_out().items()),
        lowered_threads(),
        () if lock is None else tuple(lock.missing_lines()),
    )


@dataclass(frozen=True, slots=True)
class _Evidence:
    """What selectors have found: their problems, the seconds that settled calls saved, the seconds
    that tuning cost, and the trials."""

    rows: tuple[PassSummary, ...] = ()
    saved: float = 0.0
    tuning: float = 0.0
    trials: int = 0

    def __add__(self, other: _Evidence) -> _Evidence:
        return _Evidence(
            self.rows + other.rows,
            self.saved + other.saved,
            self.tuning + other.tuning,
            self.trials + other.trials,
        )


def _evidence(override: Override, counts: Mapping[Any, int]) -> _Evidence:
    """Return what the selector of an operation has found; counts are calls by problem."""
    selector = override.selector
    calls = {problem.canonical(): count for problem, count in counts.items()}
    as_is = {problem.canonical() for problem in override.decided_above(counts)}
    rows = []
    report = selector.report()
    saved, tuning = 0.0, report.loss_seconds
    tried: defaultdict[str, list[float]] = defaultdict(list)
    for entry in _trials(selector):
        tried[entry.problem.canonical()].append(entry.seconds)  # type: ignore[attr-defined]
    for problem in report.problems:
        row = _row(override.operation.label, problem, calls)
        if row.problem in as_is:  # include passes that were chosen alone
            row = replace(row, chosen=_AS_IS, seconds_chosen=row.seconds_as_is)
        rows.append(row)
        trials = tried[row.problem]
        if row.seconds_as_is is not None and row.seconds_chosen is not None:
            settled = max(0, row.calls - len(trials) - row.refused)
            saved += settled * (row.seconds_as_is - row.seconds_chosen)
    return _Evidence(tuple(rows), saved, tuning, selector.trials)


def _row(name: str, problem: ProblemReport, calls: Mapping[str, int]) -> PassSummary:
    seconds = {alternative.name: alternative.seconds for alternative in problem.alternatives}
    chosen = None if problem.decision is None else seconds[problem.decision]
    return PassSummary(
        name,
        problem.problem,
        problem.decision,
        seconds[_AS_IS],
        chosen,
        calls.get(problem.problem, 0),
        problem.refused_calls,
    )


def _trials(selector: BestOf) -> list[TrialEntry]:
    return [entry for entry in selector.journal.entries() if isinstance(entry, TrialEntry)]
