"""Build reports from what a selector or a store holds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from bestof.selection.identity.alternative import Alternative
from bestof.selection.identity.problem import problem_text
from bestof.selection.reports.report import (
    AlternativeReport,
    ProblemReport,
    Report,
    SelectorReport,
    Status,
)
from bestof.selection.state.decision import Decision
from bestof.selection.state.noise import is_noisy, spread
from bestof.selection.state.registry import selectors
from bestof.selection.state.savings import Savings
from bestof.selection.state.tuning import Tuning
from bestof.selection.store.protocol import Store
from bestof.selection.store.record import Evidence, Record


class Price(NamedTuple):
    """What the search of a selector has cost."""

    trials: int
    trial_seconds: float
    loss_seconds: float


def report_problem(
    problem: Hashable,
    decision: Decision | None,
    tuning: Tuning | None,
    alternatives: Sequence[Alternative],
) -> ProblemReport:
    """Return the report of one problem of a live selector: settled, unsettled, or never met."""
    names = [alternative.name for alternative in alternatives]
    text = problem_text(problem)
    if decision is not None:
        known = _problem(text, names, decision.alternative, decision.source, decision.evidence)
        return replace(known, history=decision.history)
    if tuning is not None:
        evidence = tuple(
            candidate.evidence() for candidate in tuning.candidates if candidate.applies
        )
        return replace(
            _problem(text, names, None, None, evidence),
            history=tuning.history,
            why=_why_unsettled(tuning),
        )
    return ProblemReport(
        text, None, None, tuple(AlternativeReport(name, "not tried") for name in names)
    )


def _why_unsettled(tuning: Tuning) -> str | None:
    """Return why a problem has no decision, if more calls of the same kind may not bring one."""
    patience = getattr(tuning.search, "patience", 0)
    if patience > 0:
        calls = "1 more call" if patience == 1 else f"{patience} more calls"
        return (
            f"rare so far: {tuning.answered_by_neighbour!r}, the decision of a similar problem, "
            f"answers its calls, and a search begins after {calls}"
        )
    tried = sum(candidate.calls for candidate in tuning.candidates)
    open_passes = len(tuning.passes)
    if open_passes > 1 and open_passes > tried:
        return (
            f"{open_passes} passes were begun and not finished, as in an evaluation; "
            f"only finished passes are compared"
        )
    counted = sum(len(candidate.samples) for candidate in tuning.candidates)
    if tried > 1 and counted == 0:
        return f"none of {tried} trials counted, as choices inside them are unsettled"
    return None


def report_selector(
    name: str,
    stages: int,
    decisions: Mapping[Hashable, Decision],
    tunings: Mapping[Hashable, Tuning],
    alternatives: Sequence[Alternative],
    price: Price,
    savings: Savings,
) -> SelectorReport:
    problems = [
        report_problem(problem, decision, None, alternatives)
        for problem, decision in decisions.items()
    ]
    problems += [
        report_problem(problem, None, tuning, alternatives)
        for problem, tuning in tunings.items()
        if problem not in decisions
    ]
    return SelectorReport(name, stages, tuple(problems), *price, *savings)


def report_all() -> Report:
    """Return what is known of every live selector, oldest first."""
    live: list[Any] = selectors()  # the registry asks no selector for reports, which stand above it
    return Report(tuple(selector.report() for selector in live))


def store_report(store: Store) -> Report:
    """Return the report of every selector in a store. Alternatives keep the order of the store.

    Raises StoreError if the store cannot be read.
    """
    selectors = []
    for name, records in groupby(store.contents()[0], key=lambda record: record.selector):
        selectors.append(SelectorReport(name, 0, tuple(_stored(record) for record in records)))
    return Report(tuple(selectors))


def _stored(record: Record) -> ProblemReport:
    names = [evidence.alternative for evidence in record.evidence]
    return _problem(
        record.problem,
        names,
        record.decision,
        "stored" if record.decision else None,
        record.evidence,
    )


def _problem(
    problem: str,
    names: Sequence[str],
    decision: str | None,
    source: str | None,
    evidence: Iterable[Evidence],
) -> ProblemReport:
    known = {one.alternative: one for one in evidence}
    first = next((known[name].seconds for name in names if name in known), None)
    full = len(known[decision].samples) if decision is not None and decision in known else 0
    rows = tuple(_alternative(name, known.get(name), decision, first, full) for name in names)
    return ProblemReport(
        problem, decision, source, rows, noisy=is_noisy(tuple(known.values()), decision)
    )


def _alternative(
    name: str, evidence: Evidence | None, decision: str | None, first: float | None, full: int
) -> AlternativeReport:
    """Return one row.

    `first` is the time of the first alternative in seconds, `full` the number of trials of the
    chosen one.
    """
    if evidence is None:
        return AlternativeReport(name, "not applicable")
    seconds = evidence.seconds
    status: Status = "not tried"
    if evidence.samples:
        status = "pruned" if len(evidence.samples) < full else "measured"
    if evidence.disqualified is not None:
        status = "disqualified"
    elif name == decision:
        status = "chosen"
    return AlternativeReport(
        name,
        status,
        seconds=seconds,
        spread=spread(evidence.samples),
        trials=len(evidence.samples),
        speedup=first / seconds if first is not None and seconds else None,
        reason=evidence.disqualified,
        children=tuple((child.selector, child.problem) for child in evidence.children),
    )
