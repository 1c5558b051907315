"""The sentences that all formats of a report share."""

from __future__ import annotations

from collections.abc import Iterator

from bestof.selection.duration import duration
from bestof.selection.reports.report import AlternativeReport, ProblemReport, SelectorReport
from bestof.view.quantity import plural, ratio
from bestof.view.tree import Node

NOTHING = "Nothing was measured yet: no selector has met a problem."
NOT_NESTED = (
    "There is no tree: no selector was met inside another one. "
    "`bestof report` shows what was chosen."
)


def not_shown(what: str) -> str:
    """Return the hint below a table that is cut; `what` is such as `7 problems`."""
    return f"{what} not shown; --limit 0 shows all, --json too"


def selector_line(selector: SelectorReport) -> str:
    """Return the number of problems, how many of them are settled, and the cost of the search."""
    count = len(selector.problems)
    unsettled = sum(not problem.settled for problem in selector.problems)
    parts = [plural(count, "problem"), f"{unsettled} unsettled" if unsettled else "all settled"]
    if selector.stages > 1:
        parts.append(f"a group of {selector.stages} stages")
    if selector.trials:
        lost = (
            f", {duration(selector.loss_seconds)} of it lost" if selector.loss_seconds > 0 else ""
        )
        parts.append(
            f"{plural(selector.trials, 'trial')} took {duration(selector.trial_seconds)}{lost}"
        )
    else:
        parts.append("no trial in this process")
    if selector.saved_seconds:
        verb = "saved" if selector.saved_seconds > 0 else "cost"
        about = duration(abs(selector.saved_seconds))
        parts.append(f"{plural(selector.settled_calls, 'settled call')} {verb} about {about}")
    return ", ".join(parts)


def problem_state(problem: ProblemReport) -> str:
    """Return the source of the decision or that there is none, and how often drift reopened the
    race."""
    state = (problem.source or "settled") if problem.settled else "unsettled"
    return f"{state}, {plural(len(problem.history), 'drift')}" if problem.history else state


def status_text(alternative: AlternativeReport) -> str:
    """Return the status, with its reason if there is one."""
    return (
        f"{alternative.status}: {alternative.reason}" if alternative.reason else alternative.status
    )


def node_state(node: Node) -> str:
    """Return the text after a node of the tree."""
    if node.shown == "absent":
        return "not in this report"
    state = node.decision if node.decision is not None else "unsettled"
    return {"here": state, "above": f"{state}, shown above", "cycle": f"{state}, contains itself"}[
        node.shown
    ]


def node_facts(node: Node) -> Iterator[str]:
    """Yield the time and speed-up of the chosen alternative, or the source of a decision without a
    time.
    """
    chosen = next((branch.alternative for branch in node.branches if branch.chosen), None)
    if chosen is not None and chosen.seconds is not None:
        yield duration(chosen.seconds)
        if chosen.speedup is not None:
            yield ratio(chosen.speedup)
    elif node.source is not None:
        yield f"[{node.source}]"
