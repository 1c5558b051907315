"""Print the end of a run: a table of what was chosen, what it saved, and what it cost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from bestof import selection
from bestof.errors import StoreError
from bestof.selection.duration import duration
from bestof.selection.reports.overview import Net, Row, net, overview
from bestof.selection.reports.report import ProblemReport, Report, Run
from bestof.selection.state.registry import Defaults
from bestof.selection.store.protocol import Store
from bestof.view import terminal_width
from bestof.view.overview import run_lines, table_lines
from bestof.view.printable import printable
from bestof.view.quantity import plural

_WRITE_SECONDS = 1.0  # the summary waits at most so long for the store to be written
_ROWS = 12  # of the table; `bestof report` shows more
# The longest label. The column is as wide as the longest one.
_LABEL = 60
_WITHOUT_TRIALS = {
    "stored": "earlier runs have decided",
    **dict.fromkeys(("forced", "pinned"), "orders decide"),
    **dict.fromkeys(("locked", "not in the lock"), "the lock decides"),
}
"""Why no trial was needed, by the source of all decisions."""


class LoweredThreads(Protocol):
    """How PyTorch's threads were lowered, and in words what allows no more."""

    @property
    def before(self) -> int: ...
    @property
    def now(self) -> int: ...
    @property
    def limit(self) -> str: ...


class Held(Protocol):
    """Bytes beside operands and results, and the most that they may be together."""

    @property
    def scratch(self) -> int: ...
    @property
    def weights(self) -> int: ...
    @property
    def matrices(self) -> int: ...
    @property
    def limit(self) -> int | None: ...


class TorchSummary(Protocol):
    """What `bestof.torch.summary()` returns."""

    @property
    def keeps_freed(self) -> bool: ...
    @property
    def left_out(self) -> Sequence[tuple[str, str]]: ...
    @property
    def threads(self) -> LoweredThreads | None: ...
    @property
    def held(self) -> Held: ...


def summary_of(report: Report) -> tuple[list[str], Store | None]:
    """Return the lines for this process, which end on the standard error output, and its store.

    The default store is not asked for if no selector was called: asking makes the file.
    """
    integration = sys.modules.get("bestof.torch")
    torch = None if integration is None else integration.summary()
    try:
        store = selection.shared_store() if report.selectors else None
    except StoreError:  # BESTOF_STORE is wrong; the first call has told it
        store = None
    written = store is None or store.flush(_WRITE_SECONDS)
    url, width = None if store is None else store.url, terminal_width(sys.stderr)
    budget = Defaults.budget
    waits = {"their budget": budget.waited, "busy neighbours": budget.crowded}
    waited_for = " and ".join(what for what, times in waits.items() if times)
    lines = summary_lines(report, torch, url, written=written, waited_for=waited_for, width=width)
    return lines, store


def summary_lines(
    report: Report,
    torch: TorchSummary | None,
    store: str | None,
    *,
    written: bool = True,
    waited_for: str = "",
    width: int = 100,
) -> list[str]:
    """Return the lines for the program that a report is about.

    `store` is the URL of the store, or None if decisions are not kept. `written` says whether the
    store has all of them, `waited_for` what trials have waited for. `width` is that of the lines of
    the table.
    """
    assert report.run is not None
    program, where = run_lines(report.run)
    title = f"bestof: {program}"
    rows = overview(report)
    if not rows and (torch is None or not torch.left_out):
        if any(one.problems for one in report.selectors):
            return [f"{title}; no problem left a choice: of each, only one alternative remained"]
        return [f"{title}; no selector was called, so there was nothing to choose"]
    lines = [title, f"  {where}"]
    if rows:
        lines += [f"  {line}" for line in table_lines(rows, width - 2, _ROWS)]
    facts = _facts(report, rows, torch, waited_for)
    if store is not None and store.startswith("lock:"):
        facts.append(("locked to", f"{store.removeprefix('lock:')}: nothing is measured or kept"))
    elif store is not None and not written:
        facts.append(("not kept", f"{store} is not written yet; the last try is at exit"))
    else:
        facts.append(("kept in", store or "this process only: the store is off"))
    facts.append(("words", "`bestof report --explain-words` explains them"))
    facts = [(printable(label, _LABEL), printable(text)) for label, text in facts]
    column = max(len(label) for label, _ in facts)
    return [*lines, *(f"  {label:<{column}}  {text}" for label, text in facts)]


def _facts(
    report: Report, rows: Sequence[Row], torch: TorchSummary | None, waited_for: str
) -> list[tuple[str, str]]:
    total, run = net(report), report.run
    assert run is not None
    facts = []
    if total.calls:
        facts.append(("saved", _saved(total, run)))
    facts.append(("tuning", _price(total, report)))
    stored = [
        one for selector in report.selectors for one in selector.problems if one.source == "stored"
    ]
    if stored:
        facts.append(("stored", _spared(stored)))
    if run.window is not None:
        facts.append(("window", run.window))
    if total.calls and total.trials:
        facts.append(("net", f"{duration(total.seconds)}: saved, less what tuning cost"))
    unsettled = sum(row.chosen is None for row in rows)
    if unsettled:
        why = f", and trials that waited for {waited_for}" if waited_for else ""
        facts.append(("unsettled", f"{plural(unsettled, 'row')}: few calls so far{why}"))
    drifted = sum(bool(one.history) for selector in report.selectors for one in selector.problems)
    if drifted:
        facts.append(
            ("drift", f"{plural(drifted, 'problem')} searched again: the winner's time had changed")
        )
    if torch is not None and torch.keeps_freed:
        facts.append(
            ("memory", "freed memory stays in the process; what this saves is not counted")
        )
    if torch is not None and torch.held.limit is not None:
        facts.append(("bound", _bound(torch.held, torch.held.limit)))
    if torch is not None and torch.threads is not None:
        lowered = torch.threads
        facts.append(("threads", f"{lowered.now} in place of {lowered.before}: {lowered.limit}"))
    left_out = () if torch is None else torch.left_out
    return [*facts, *(("left out", f"{name} stays PyTorch's own: {why}") for name, why in left_out)]


def _bound(held: Held, limit: int) -> str:
    mib = 2**20
    return (
        f"{limit // mib:,} MiB: scratch {held.scratch / mib:,.1f}, packed weights "
        f"{held.weights / mib:,.1f}, kept matrices {held.matrices / mib:,.1f}"
    )


def _saved(total: Net, run: Run) -> str:
    if total.saved < 0:
        return f"nothing: orders cost {duration(-total.saved)} in {plural(total.calls, 'call')}"
    # What settled calls would have taken alone is not known: earlier decisions keep no times.
    return (
        f"{duration(total.saved)} in {plural(total.calls, 'settled call')}; with the first "
        f"alternatives in these, the whole run would have taken "
        f"{duration(run.seconds + total.saved)}"
    )


def _price(total: Net, report: Report) -> str:
    if total.trials == 0:
        problems = [one for selector in report.selectors for one in selector.problems]
        sources = {one.source or "" for one in problems if one.source != "only"}
        reasons = {_WITHOUT_TRIALS.get(one, "") for one in sources}
        why = reasons.pop() if len(reasons) == 1 else ""
        return f"no trial was made{why and ': '}{why}"
    assert report.run is not None
    share = _share(total.tuning, report.run.seconds)
    return f"cost {duration(total.tuning)}, {share} of the run, in {plural(total.trials, 'trial')}"


def _spared(stored: Sequence[ProblemReport]) -> str:
    """Return how many decisions came from the store, and what their trials had cost."""
    spared = sum(
        one.trials * max(0.0, one.seconds - problem.chosen.seconds)
        for problem in stored
        if problem.chosen is not None and problem.chosen.seconds is not None
        for one in problem.alternatives
        if one.seconds is not None
    )
    count = plural(len(stored), "decision")
    return f"{count} of earlier runs, whose trials had cost {duration(spared)}"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole > 0 else "0.0 %"
