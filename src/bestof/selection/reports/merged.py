"""One report of several processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bestof.selection.reports.report import ProblemReport, Report, SelectorReport


def merged(reports: Iterable[Report]) -> Report:
    """Return the selectors of all reports, those of one name as one.

    Numbers are summed. Of a problem, the times and the choice are those of the process in which
    most calls were settled. The run is that of the first report.
    """
    selectors: dict[tuple[str, int], SelectorReport] = {}
    run = None
    for report in reports:
        run = run or report.run
        for one in report.selectors:
            key = one.selector, one.stages
            selectors[key] = _sum(selectors[key], one) if key in selectors else one
    return Report(tuple(selectors.values()), run)


def _sum(one: SelectorReport, other: SelectorReport) -> SelectorReport:
    problems = {problem.problem: problem for problem in one.problems}
    for problem in other.problems:
        known = problems.get(problem.problem)
        problems[problem.problem] = problem if known is None else _both(known, problem)
    return replace(
        one,
        problems=tuple(problems.values()),
        trials=one.trials + other.trials,
        trial_seconds=one.trial_seconds + other.trial_seconds,
        loss_seconds=one.loss_seconds + other.loss_seconds,
        settled_calls=one.settled_calls + other.settled_calls,
        saved_seconds=one.saved_seconds + other.saved_seconds,
    )


def _both(one: ProblemReport, other: ProblemReport) -> ProblemReport:
    leading = max(one, other, key=lambda problem: (problem.settled, problem.settled_calls))
    both = replace(
        leading,
        settled_calls=one.settled_calls + other.settled_calls,
        places=tuple(dict.fromkeys((*one.places, *other.places))),
        refused_calls=one.refused_calls + other.refused_calls,
        earlier_calls=one.earlier_calls + other.earlier_calls,
    )
    # Each process has saved by its own times.
    apart = both.earlier_saved + one.saved + other.saved - both.saved
    return replace(both, earlier_saved=apart)
