"""What was chosen, a row for each layer or problem, the dearest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bestof.selection.reports.report import ProblemReport, Report

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One problem that was met outside of others, with the choices inside its winner.

    `key` is the selector and the problem. `places` are what called it, such as the modules of a
    model. `chosen` names the alternative, and `inside` what was chosen inside it. `before` and
    `after` are seconds of a call by the first alternative and by the chosen one (unsettled: by the
    leader), None if unknown. `calls` are those that the decision answered. `remark` says why a
    faster alternative was not chosen, and `why` why there is no decision; None if there is no need.
    """

    key: _Key
    places: tuple[str, ...]
    chosen: str | None
    inside: tuple[str, ...]
    before: float | None
    after: float | None
    calls: int
    noisy: bool
    remark: str | None
    why: str | None

    @property
    def gain(self) -> float | None:
        """How many times as fast a call is; None if unknown."""
        return self.before / self.after if self.before is not None and self.after else None

    @property
    def saved(self) -> float:
        """Seconds that the decision saved in its calls; negative if an order costs time."""
        if self.chosen is None or self.before is None or self.after is None:
            return 0.0
        return self.calls * (self.before - self.after)

    @property
    def weight(self) -> float:
        """Seconds of all calls; of one call, if they were not counted."""
        return (self.after or 0.0) * max(1, self.calls)


class Net(NamedTuple):
    """What all decisions saved, in seconds, and what all trials cost beyond the winners' time."""

    saved: float
    tuning: float
    trials: int
    calls: int
    unsettled: int

    @property
    def seconds(self) -> float:
        """What is left of the savings after the cost of tuning."""
        return self.saved - self.tuning


def overview(report: Report) -> tuple[Row, ...]:
    """Return a row for each problem that was met outside of others, the dearest first.

    Problems that left no choice have none.
    """
    problems = {
        (one.selector, problem.problem): problem
        for one in report.selectors
        for problem in one.problems
    }
    inner = {child for problem in problems.values() for child in _children(problem)}
    outer = [key for key in problems if key not in inner]
    # A circle of problems that contain each other has no outer one: show them all.
    rows = [_row(key, problems) for key in outer or problems if problems[key].source != "only"]
    return tuple(sorted(rows, key=lambda row: -row.weight))


def net(report: Report) -> Net:
    """Return what tuning has brought, over all rows of the overview."""
    rows = overview(report)
    return Net(
        sum(row.saved for row in rows),
        sum(one.loss_seconds for one in report.selectors),
        sum(one.trials for one in report.selectors),
        sum(row.calls for row in rows),
        sum(row.chosen is None for row in rows),
    )


def _row(key: _Key, problems: dict[_Key, ProblemReport]) -> Row:
    problem = problems[key]
    chosen, timed = problem.chosen, [one for one in problem.alternatives if one.seconds is not None]
    lead = min(timed, key=lambda one: one.seconds or 0.0, default=None)
    shown = lead if chosen is None else chosen
    inside = [
        problems[child]
        for child in ([] if chosen is None else chosen.children)
        if child in problems
    ]
    below = [problems[child] for child in _children(problem) if child in problems]
    counted = [one.settled_calls for one in below]
    met = (problem, *below)  # whoever met a problem inside, met this one
    return Row(
        key,
        tuple(dict.fromkeys(place for one in met for place in one.places)),
        problem.decision,
        tuple(one.decision or "unsettled" for one in inside),
        problem.before,
        None if shown is None else shown.seconds,
        # C++ answers the parts of a group without asking the group.
        max(problem.settled_calls, min(filter(None, counted), default=0)),
        any(one.noisy for one in (problem, *inside)),
        problem.remark,
        problem.why,
    )


def _children(problem: ProblemReport) -> Iterator[_Key]:
    for alternative in problem.alternatives:
        yield from alternative.children
