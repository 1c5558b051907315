"""Print the summary of a run, in five to ten lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from bestof.selection.duration import duration
from bestof.selection.reports.report import Report, SelectorReport
from bestof.view.printable import printable
from bestof.view.quantity import plural

# The most selectors that are listed. The rest are counted, so that the summary stays short.
_LISTED = 4
# The longest name of a selector. The column is as wide as the longest name, so longer ones are
# shortened.
_LABEL = 60


class PassRow(Protocol):
    """One problem of one pass: its alternative, the seconds of a call before and after, its
    calls."""

    @property
    def name(self) -> str: ...
    @property
    def problem(self) -> str: ...
    @property
    def chosen(self) -> str | None: ...
    @property
    def seconds_as_is(self) -> float | None: ...
    @property
    def seconds_chosen(self) -> float | None: ...
    @property
    def calls(self) -> int: ...
    @property
    def rare(self) -> bool: ...


class LoweredThreads(Protocol):
    """How PyTorch's threads were lowered, and in words what allows no more."""

    @property
    def before(self) -> int: ...
    @property
    def now(self) -> int: ...
    @property
    def limit(self) -> str: ...


class TorchSummary(Protocol):
    """What `bestof.torch.summary()` returns."""

    @property
    def layers(self) -> int: ...
    @property
    def passes(self) -> Sequence[PassRow]: ...
    @property
    def seconds_saved(self) -> float: ...
    @property
    def seconds_tuning(self) -> float: ...
    @property
    def trials(self) -> int: ...
    @property
    def keeps_freed(self) -> bool: ...
    @property
    def left_out(self) -> Sequence[tuple[str, str]]: ...
    @property
    def threads(self) -> LoweredThreads | None: ...


def summary_lines(
    script: str,
    seconds: float,
    report: Report,
    torch: TorchSummary | None,
    store: str | None,
    *,
    written: bool = True,
) -> list[str]:
    """Return the lines for a program that ran for `seconds`.

    `store` is the URL of the store, or None if decisions are not kept. `written` says whether the
    store has all of them.
    """
    title = f"bestof: {printable(script)} ran {duration(seconds)}"
    if torch is not None and torch.layers:
        rows = _torch_rows(torch, seconds)
    elif any(selector.problems for selector in report.selectors):
        rows = _selector_rows(report.selectors, seconds)
    else:
        return [f"{title}; no selector was called, so there was nothing to choose"]
    drifted = sum(bool(one.history) for selector in report.selectors for one in selector.problems)
    if drifted:
        rows.append(
            ("drift", f"{plural(drifted, 'problem')} searched again: the winner's time had changed")
        )
    if store is not None and not written:
        rows.append(("not kept", f"{store} is not written yet; the last try is at exit"))
    else:
        rows.append(("kept in", store or "this process only: the store is off"))
    rows = [(printable(label, _LABEL), printable(text)) for label, text in rows]
    width = max(len(label) for label, _ in rows)
    return [title, *(f"  {label:<{width}}  {text}" for label, text in rows)]


def _torch_rows(torch: TorchSummary, seconds: float) -> list[tuple[str, str]]:
    rows = [
        (
            "layers",
            f"{torch.layers} distinct, {plural(len(torch.passes), 'problem')} over all passes",
        )
    ]
    for name in dict.fromkeys(row.name for row in torch.passes):
        chosen = (
            "unsettled (rare: few calls)" if row.rare else row.chosen
            for row in torch.passes
            if row.name == name
        )
        rows.append((name, _counted(chosen)))
    as_is = seconds + torch.seconds_saved
    rows.append(
        (
            "saved",
            f"{duration(torch.seconds_saved)} of the {duration(as_is)} that PyTorch's own kernels "
            "would have taken, by settled calls",
        )
    )
    if torch.keeps_freed:
        rows.append(("memory", "freed memory stays in the process; what this saves is not counted"))
    if torch.threads is not None:
        lowered = torch.threads
        rows.append(("threads", f"{lowered.now} in place of {lowered.before}: {lowered.limit}"))
    rows += [("left out", f"{name} stays PyTorch's own: {why}") for name, why in torch.left_out]
    rows.append(("tuning", _price(torch.trials, torch.seconds_tuning, seconds)))
    return rows


def _selector_rows(selectors: Sequence[SelectorReport], seconds: float) -> list[tuple[str, str]]:
    used = sorted((one for one in selectors if one.problems), key=lambda one: -len(one.problems))
    problems = [problem for selector in used for problem in selector.problems]
    unsettled = sum(not problem.settled for problem in problems)
    settled = f", {unsettled} unsettled" if unsettled else ", all settled"
    rows = [("selectors", f"{len(used)}, with {plural(len(problems), 'problem')}{settled}")]
    for selector in used[:_LISTED]:
        rows.append(
            (selector.selector, _counted(problem.decision for problem in selector.problems))
        )
    if len(used) > _LISTED:
        rows.append(
            ("...", f"and {plural(len(used) - _LISTED, 'selector')} more: see `bestof report`")
        )
    trials = sum(selector.trials for selector in used)
    # The loss is less than the time of the trials, because a trial also answers a call of the
    # program.
    rows.append(
        ("tuning", _price(trials, sum(selector.loss_seconds for selector in used), seconds))
    )
    return rows


def _counted(chosen: Iterable[str | None]) -> str:
    counts = Counter("unsettled" if name is None else name for name in chosen)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _price(trials: int, lost: float, seconds: float) -> str:
    if trials == 0:
        return "settled from the start: no trial was made"
    return (
        f"cost {duration(lost)}, {_share(lost, seconds)} of the run, in {plural(trials, 'trial')}"
    )


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole > 0 else "0.0 %"
