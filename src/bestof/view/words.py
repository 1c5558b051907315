"""The sentences that every format of a report has in common."""

from __future__ import annotations

from bestof.selection.duration import duration
from bestof.selection.report import AlternativeReport, ProblemReport, SelectorReport
from bestof.view.quantity import plural
from bestof.view.tree import Node

NOTHING = "Nothing was measured yet: no selector has met a problem."


def selector_line(selector: SelectorReport) -> str:
    """How many problems, how many of them settled, and what the search cost."""
    count = len(selector.problems)
    unsettled = sum(not problem.settled for problem in selector.problems)
    parts = [plural(count, "problem"), f"{unsettled} unsettled" if unsettled else "all settled"]
    if selector.stages > 1:
        parts.append(f"a group of {selector.stages} stages")
    if selector.trials:
        lost = f", {duration(selector.loss_seconds)} of it lost" if selector.loss_seconds > 0 else ""
        parts.append(f"{plural(selector.trials, 'trial')} took {duration(selector.trial_seconds)}{lost}")
    else:
        parts.append("no trial in this process")
    if selector.saved_seconds:
        verb = "saved" if selector.saved_seconds > 0 else "cost"
        about = duration(abs(selector.saved_seconds))
        parts.append(f"{plural(selector.settled_calls, 'settled call')} {verb} about {about}")
    return ", ".join(parts)


def problem_state(problem: ProblemReport) -> str:
    """Where the decision came from, or that there is none; and how often its race was reopened, as its time drifted."""
    state = (problem.source or "settled") if problem.settled else "unsettled"
    return f"{state}, {plural(len(problem.history), 'drift')}" if problem.history else state


def status_text(alternative: AlternativeReport) -> str:
    """The status, and the reason where there is one."""
    return f"{alternative.status}: {alternative.reason}" if alternative.reason else alternative.status


def node_state(node: Node) -> str:
    """What stands behind a node of the tree."""
    if node.shown == "absent":
        return "not in this report"
    state = node.decision if node.decision is not None else "unsettled"
    return {"here": state, "above": f"{state}, shown above", "cycle": f"{state}, contains itself"}[node.shown]
