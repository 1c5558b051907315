"""Summarises tuning in this process: what was chosen, saved and spent."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bestof.html_table import html_table
from bestof.selection import BestOf
from bestof.selection.duration import duration
from bestof.selection.reports.report import ProblemReport
from bestof.selection.state.journal import TrialEntry
from bestof.torch.convolution.decisions import INDEPENDENT, JOINT, SHARED
from bestof.torch.convolution.layer import AS_IS, ConvolutionLayer
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.dispatch.call_counts import CallCounts
from bestof.torch.dispatch.search import PATIENCE
from bestof.torch.enable import (
    convolution_overrides,
    keeps_freed_memory,
    left_out,
    lowered_threads,
    operation_overrides,
)
from bestof.torch.process.threads import Lowered


@dataclass(frozen=True, slots=True)
class PassSummary:
    """One problem of one pass of a convolution, or of another operation (`name`).

    `chosen` is None while the problem is unsettled. The seconds are medians of a call, by PyTorch's
    own kernel and by the chosen alternative; None if nothing was measured. `calls` counts the calls
    of this process by all alternatives.
    """

    name: str
    problem: str
    chosen: str | None
    seconds_as_is: float | None
    seconds_chosen: float | None
    calls: int

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
    """

    layers: int
    passes: tuple[PassSummary, ...]
    seconds_saved: float
    seconds_tuning: float
    trials: int
    keeps_freed: bool = False
    left_out: tuple[tuple[str, str], ...] = ()
    threads: Lowered | None = None

    def _repr_html_(self) -> str:
        """Return a table for notebooks: a row for each problem, and what was saved and spent."""
        rows = [
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
        saved = (
            f"saved {duration(self.seconds_saved)}, tuning cost {duration(self.seconds_tuning)} in "
            f"{self.trials} trials"
        )
        out = [f"{name} stays PyTorch's own: {why}" for name, why in self.left_out]
        headings = ("operation", "problem", "chosen", "calls", "before", "after")
        return html_table("bestof", headings, rows, notes=[saved, *out])


def summary() -> Summary:
    """Return the summary of this process so far, also after `disable`.

    All numbers are zero if nothing was enabled.
    """
    state = (keeps_freed_memory(), tuple(left_out().items()), lowered_threads())
    total = Summary(0, (), 0.0, 0.0, 0, *state)
    found = [_summary(override.layer) for override in convolution_overrides()]
    found += [_operation_summary(one.selector, one.calls) for one in operation_overrides()]
    for one in found:
        total = Summary(
            total.layers + one.layers,
            total.passes + one.passes,
            total.seconds_saved + one.seconds_saved,
            total.seconds_tuning + one.seconds_tuning,
            total.trials + one.trials,
            *state,
        )
    return total


def _summary(layer: ConvolutionLayer) -> Summary:
    convolutions: set[ConvProblem] = set()
    joint = layer.decisions.joint
    total = _Evidence()
    for selector, counts in layer.passes:
        calls = counts.totals()
        convolutions.update(
            problem._replace(bias=False, grad_layout="", frozen=False) for problem in calls
        )
        as_is = {
            problem.canonical()
            for problem in calls
            if problem._replace(bias=False, grad_layout="") in joint
        }
        by_text = {problem.canonical(): count for problem, count in calls.items()}
        total += _evidence(selector, selector.name.removeprefix("convolution "), by_text, as_is)
    loss, saved_by_sharing = _sharing(layer)
    return Summary(
        len(convolutions),
        total.rows,
        total.saved + saved_by_sharing,
        total.tuning + loss,
        total.trials + layer.layer.trials,
    )


def _operation_summary(selector: BestOf, counts: CallCounts[Any]) -> Summary:
    calls = {problem.canonical(): count for problem, count in counts.totals().items()}
    found = _evidence(selector, selector.name, calls, frozenset())
    return Summary(0, found.rows, found.saved, found.tuning, found.trials)


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


def _evidence(
    selector: BestOf, name: str, calls: Mapping[str, int], as_is: Collection[str]
) -> _Evidence:
    """Return what a selector has found. Above it, PyTorch's own kernels were chosen for `as_is`."""
    rows = []
    report = selector.report()
    saved, tuning = 0.0, report.loss_seconds
    tried: defaultdict[str, list[float]] = defaultdict(list)
    for entry in _trials(selector):
        tried[entry.problem.canonical()].append(entry.seconds)  # type: ignore[attr-defined]
    for problem in report.problems:
        row = _row(name, problem, calls)
        if row.problem in as_is:  # include passes that were chosen alone
            row = replace(row, chosen=AS_IS, seconds_chosen=row.seconds_as_is)
        rows.append(row)
        trials = tried[row.problem]
        if row.seconds_as_is is not None and row.seconds_chosen is not None:
            saved += max(0, row.calls - len(trials)) * (row.seconds_as_is - row.seconds_chosen)
    return _Evidence(tuple(rows), saved, tuning, selector.trials)


def _row(name: str, problem: ProblemReport, calls: Mapping[str, int]) -> PassSummary:
    seconds = {alternative.name: alternative.seconds for alternative in problem.alternatives}
    chosen = None if problem.decision is None else seconds[problem.decision]
    return PassSummary(
        name,
        problem.problem,
        problem.decision,
        seconds["as is"],
        chosen,
        calls.get(problem.problem, 0),
    )


def _sharing(layer: ConvolutionLayer) -> tuple[float, float]:
    """Return what the trials of the groups cost and what sharing saves, beyond those of the passes.

    A counted trial of a group contains no trial of a pass. The sum over counted trials therefore
    leaves out what the passes have booked.
    """
    taken: defaultdict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
    seconds: defaultdict[str, defaultdict[tuple[str, int], float]] = defaultdict(
        lambda: defaultdict(float)
    )
    for entry in _trials(layer.layer):
        if entry.counted:
            text = entry.problem.canonical()  # type: ignore[attr-defined]
            taken[text][entry.alternative, entry.stage] += 1
            seconds[text][entry.alternative, entry.stage] += entry.seconds
    shared = {problem.canonical(): count for problem, count in layer.sharing_calls.totals().items()}
    loss = saved = 0.0
    for problem in layer.layer.report().problems:
        text, decision = problem.problem, problem.decision
        median = {alternative.name: alternative.seconds for alternative in problem.alternatives}
        chosen = _best(problem) if decision is None else median[decision]
        if chosen is None:
            continue
        for name in (JOINT, INDEPENDENT, SHARED):
            passes = taken[text][name, 1]
            if passes:  # leave out forward passes whose backward pass never came or did not count
                forward = seconds[text][name, 0] * min(1.0, passes / max(1, taken[text][name, 0]))
                loss += max(0.0, forward + seconds[text][name, 1] - passes * chosen)
        independent = median[INDEPENDENT]
        if decision == SHARED and independent is not None:
            saved += max(0, shared.get(text, 0) - taken[text][SHARED, 1]) * (independent - chosen)
    return loss, saved


def _best(problem: ProblemReport) -> float:
    """Return the seconds of the leading alternative; 0 if nothing was measured."""
    return min(
        (one.seconds for one in problem.alternatives if one.seconds is not None), default=0.0
    )


def _trials(selector: BestOf) -> list[TrialEntry]:
    return [entry for entry in selector.journal.entries() if isinstance(entry, TrialEntry)]
