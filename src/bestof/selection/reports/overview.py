"""What was chosen, a row for each layer or problem, the dearest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from bestof.selection.reports.report import ProblemReport, Report

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One problem that was met outside of others, with the choices inside its winner.

    `key` is the selector and the problem. `places` are what called it, such as the modules of a
    model. `chosen` names the alternative, and `inside` what was chosen inside it. `before` and
    `after` are seconds of a call by the first alternative and by the chosen one (unsettled: by the
    leader), None if unknown. `calls` are those that decisions answered, the earlier ones too.
    `saved` are the seconds that these saved; negative if an order costs time. `remark` says why a
    faster alternative was not chosen, `why` why there is no decision, `drift` why the last race
    was run again, and `refusals` how many calls the chosen alternative left to the first one; None
    if there is no need.
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
    drift: str | None = None
    refusals: str | None = None
    saved: float = 0.0

    @property
    def gain(self) -> float | None:
        """How many times as fast a call is; None if unknown."""
        return self.before / self.after if self.before is not None and self.after else None

    @property
    def counted(self) -> int:
        """The calls whose saving is known; 0 if an order was taken and nothing was measured."""
        return self.calls if self.saved or self.gain is not None else 0

    @property
    def weight(self) -> float:
        """Seconds of all calls; of one call, if they were not counted."""
        return (self.after or 0.0) * max(1, self.calls)


class Net(NamedTuple):
    """What all decisions saved, in seconds, and what all trials cost beyond the winners' time.

    `calls` are those whose saving is known.
    """

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
    problems = problems_of(report)
    inner = {child for problem in problems.values() for child in _children(problem)}
    outer = [key for key in problems if key not in inner]
    # A circle of problems that contain each other has no outer one: show them all.
    rows = [_row(key, problems) for key in outer or problems if problems[key].source != "only"]
    return tuple(sorted(rows, key=lambda row: -row.weight))


def problems_of(report: Report) -> dict[_Key, ProblemReport]:
    """Return the problems by selector and text.

    Selectors of one name that chose alike, by the same times, share an entry with the calls of all.
    What another one chose in another way has a number behind its problem, such as "4 #2".
    """
    found: dict[_Key, ProblemReport] = {}
    for one in report.selectors:
        for problem in one.problems:
            number = 1
            key = one.selector, problem.problem
            while key in found and not _is_alike(found[key], problem):
                number += 1
                key = one.selector, f"{problem.problem} #{number}"
            known = found.get(key)
            if known is None:
                found[key] = problem
                continue
            found[key] = replace(
                known,
                settled_calls=known.settled_calls + problem.settled_calls,
                places=tuple(dict.fromkeys((*known.places, *problem.places))),
                refused_calls=known.refused_calls + problem.refused_calls,
                earlier_calls=known.earlier_calls + problem.earlier_calls,
                earlier_saved=known.earlier_saved + problem.earlier_saved,
            )
    return found


def net(report: Report) -> Net:
    """Return what tuning has brought, over all rows of the overview."""
    rows = overview(report)
    return Net(
        sum(row.saved for row in rows),
        sum(one.loss_seconds for one in report.selectors),
        sum(one.trials for one in report.selectors),
        sum(row.counted for row in rows),
        sum(row.chosen is None for row in rows),
    )


def _is_alike(one: ProblemReport, other: ProblemReport) -> bool:
    if one.decision != other.decision or one.before != other.before:
        return False
    return one.chosen is None or one.chosen.seconds == (other.chosen and other.chosen.seconds)


def _row(key: _Key, problems: dict[_Key, ProblemReport]) -> Row:
    problem = problems[key]
    chosen, timed = problem.chosen, [one for one in problem.alternatives if one.seconds is not None]
    lead = min(timed, key=lambda one: one.seconds or 0.0, default=None)
    shown = lead if chosen is None else chosen
    children = _children(problem) if chosen is None else chosen.children
    below = [problems[child] for child in dict.fromkeys(children) if child in problems]
    inside = [] if chosen is None else below
    # Modules that share a problem inside need not share this one.
    places = problem.places or tuple(place for one in below for place in one.places)
    drifts = [race for one in (problem, *inside) for race in one.history]
    refusing = [one for one in (problem, *inside) if one.refused_calls]
    before, after = _before(problem, inside), None if shown is None else shown.seconds
    calls, saved = problem.settled_calls if problem.settled else 0, problem.earlier_saved
    if chosen is not None and before is not None and after is not None:
        saved += calls * (before - after)
        saved -= sum(min(one.refused_calls, calls) * one.gain for one in refusing)
    return Row(
        key,
        tuple(dict.fromkeys(places)),
        problem.decision,
        tuple(one.decision or "unsettled" for one in inside),
        before,
        after,
        calls + problem.earlier_calls,
        any(one.noisy for one in (problem, *inside)),
        problem.remark,
        problem.why,
        str(drifts[-1]) if drifts else None,
        "; ".join(one.refusals or "" for one in refusing) or None,
        saved,
    )


def _before(problem: ProblemReport, inside: Sequence[ProblemReport]) -> float | None:
    """Return the seconds of a call by the first alternative.

    If that cannot run, and what replaces it was chosen, the gains are inside: a call would have
    taken longer by these.
    """
    chosen, before = problem.chosen, problem.before
    if chosen is None or chosen.seconds is None or not inside:
        return before
    if problem.alternatives[0].seconds is None and chosen == problem.first:
        return chosen.seconds + sum(one.gain for one in inside)
    return before


def _children(problem: ProblemReport) -> Iterator[_Key]:
    for alternative in problem.alternatives:
        yield from alternative.children
