"""The sentences that all formats of a report share."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from bestof.selection.duration import duration
from bestof.selection.reports.report import (
    AlternativeReport,
    ProblemReport,
    Report,
    SelectorReport,
)
from bestof.view.quantity import plural, ratio
from bestof.view.tree import Node

NOTHING = "Nothing was measured yet: no selector has met a problem."
_NO_CHOICE = "No problem left a choice: of each, only one alternative was worth a trial."
WORDS = (
    ("problem", "what identifies a call for the choice, such as the shapes of a convolution"),
    ("layer", "a module of the model; +2 says that two more modules have the same problem"),
    ("alternative", "one of the implementations to choose from; the first is the reference"),
    ("as is", "PyTorch's own kernel, which would run without bestof"),
    ("trial", "one timed call of an alternative, on the program's own data"),
    ("calls", "those that decisions answered, the earlier ones too, in C++ or Python; no trials"),
    ("before", "the time of a call by the first alternative: the median of its trials"),
    ("after", "the same for the chosen alternative; unsettled: for the fastest so far"),
    (
        "median",
        "choices go by it: without a slow first trial; 40 us are added where Python must call",
    ),
    ("spread", "half the distance between the quartiles of the trials"),
    ("gain", "before divided by after"),
    ("saved", "calls times (before - after), without refused ones, each by its decision's times"),
    ("tuning", "what trials took beyond the time of the chosen alternative"),
    ("net", "saved, less tuning"),
    ("chosen", "the decision; of a layer that is trained: forward, input and weight gradient"),
    ("noisy (~)", "trials vary so much that another alternative may be faster"),
    ("settled", "there is a decision, and calls go straight to the chosen alternative"),
    ("measured", "by trials of this process; as status: tried as often as the chosen one"),
    ("stored", "decided by an earlier process, from the store"),
    ("only", "no other alternative was worth a trial"),
    ("forced, pinned", "chosen by an order, without trials"),
    ("locked", "from the lock; `not in the lock`: the first alternative, as none is recorded"),
    ("window", "the best so far when a window of steps ended"),
    ("pruned", "left the search after a few trials, as it was slower"),
    ("left out", "could run, and was not tried; the reason follows"),
    ("not applicable", "cannot compute this problem, or not at the chosen level of accuracy"),
    ("disqualified", "raised an error, or returned a wrong result; the reason follows"),
    ("refused", "left to the first alternative because of the call's operands: saves nothing"),
    ("drift", "the chosen alternative had become slower, and bestof chose anew"),
)
"""The words of reports, and what they mean."""


def nothing(report: Report) -> str:
    """Return why a report has no row."""
    return _NO_CHOICE if any(one.problems for one in report.selectors) else NOTHING


def explained_words(width: int) -> str:
    """Return the words of reports in lines of at most `width` columns, 40 at least."""
    place = 2 + max(len(word) for word, _ in WORDS)
    return "\n".join(
        textwrap.fill(f"{word:<{place}}{meaning}", max(width, 40), subsequent_indent=" " * place)
        for word, meaning in WORDS
    )


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
    state = f"{state}, noisy" if problem.noisy else state
    state = f"{state}, {plural(len(problem.history), 'drift')}" if problem.history else state
    return f"{state}; {problem.remark}" if problem.remark is not None else state


def problem_notes(problem: ProblemReport) -> Iterator[str]:
    """Yield where a problem was met, why it is not settled, the races that drift ended, and the
    calls that were refused."""
    if problem.places:
        yield f"met in {', '.join(problem.places)}"
    if not problem.settled and problem.why:
        yield problem.why
    yield from map(str, problem.history)
    if problem.refusals is not None:
        yield problem.refusals


def status_text(alternative: AlternativeReport) -> str:
    """Return the status, with its reason if there is one."""
    return (
        f"{alternative.status}: {alternative.reason}" if alternative.reason else alternative.status
    )


UNTRIED = ("left out", "not applicable")
"""The statuses of alternatives without a trial, of which a problem may have dozens."""


def untried_names(problem: ProblemReport) -> dict[str, list[str]]:
    """Return the names of alternatives that were not tried, by the reason."""
    names: dict[str, list[str]] = {}
    for one in problem.alternatives:
        if one.status in UNTRIED:
            names.setdefault(status_text(one), []).append(one.name)
    return names


def node_state(node: Node) -> str:
    """Return the text after a node of the tree."""
    if node.shown == "absent":
        return "not in this report"
    state = node.decision if node.decision is not None else "unsettled"
    state = f"{state}, noisy" if node.noisy else state
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
