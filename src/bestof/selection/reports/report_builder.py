"""Build reports from what a selector or a store holds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from bestof.selection.identity.alternative import Alternative
from bestof.selection.identity.problem import problem_text
from bestof.selection.reports.report import (
    AlternativeReport,
    Met,
    ProblemReport,
    Report,
    SelectorReport,
    Status,
)
from bestof.selection.state.decision import Decision
from bestof.selection.state.noise import is_noisy, spread
from bestof.selection.state.registry import selectors
from bestof.selection.state.savings import Savings
from bestof.selection.state.trial_costs import TrialCosts
from bestof.selection.state.tuning import Tuning
from bestof.selection.store.protocol import Store
from bestof.selection.store.record import Evidence, Record


def report_problem(
    problem: Hashable,
    decision: Decision | None,
    tuning: Tuning | None,
    alternatives: Sequence[Alternative],
    surcharges: Mapping[str, float],
) -> ProblemReport:
    """Return the report of one problem of a live selector: settled, unsettled, or never met.

    surcharges: seconds that a call costs beyond a trial if an alternative has won, by its name.
    """
    names = [alternative.name for alternative in alternatives]
    text = problem_text(problem)
    if decision is not None:
        known = _problem(
            text, names, decision.alternative, decision.source, decision.evidence, surcharges
        )
        return replace(
            _with_reasons(known, problem, alternatives),
            history=decision.history,
            trials=decision.trials,
        )
    if tuning is not None:
        evidence = tuple(
            candidate.evidence() for candidate in tuning.candidates if candidate.applies
        )
        known = _problem(text, names, None, None, evidence, surcharges)
        return replace(
            _with_reasons(known, problem, alternatives),
            history=tuning.history,
            why=_why_unsettled(tuning),
        )
    return ProblemReport(
        text, None, None, tuple(AlternativeReport(name, "not tried") for name in names)
    )


def _with_reasons(
    known: ProblemReport, problem: Hashable, alternatives: Sequence[Alternative]
) -> ProblemReport:
    """Tell alternatives that could run, and were thought slow, from those that cannot run."""
    rows = tuple(
        replace(row, status="left out", reason=reason)
        if row.status == "not applicable" and (reason := _left_out(alternative, problem))
        else row
        for row, alternative in zip(known.alternatives, alternatives, strict=True)
    )
    return replace(known, alternatives=rows)


def _left_out(alternative: Alternative, problem: Hashable) -> str | None:
    try:
        return alternative.left_out(problem) if alternative.can_run(problem) else None
    except Exception:  # its search has told it
        return None


def _why_unsettled(tuning: Tuning) -> str | None:
    """Return why a problem has no decision, if more calls of the same kind may not bring one."""
    patience = getattr(tuning.search, "patience", 0)
    if patience > 0:
        calls = "1 more call" if patience == 1 else f"{patience} more calls"
        return (
            f"rare so far: {tuning.answered_by_neighbour!r}, the decision of a similar problem, "
            f"answers its calls, and a search begins after {calls}"
        )
    tried = sum(candidate.calls for candidate in tuning.candidates) - tuning.ignored
    open_passes = len(tuning.passes)
    if open_passes > 1 and open_passes > tried:
        return (
            f"{open_passes} passes were begun and not finished, as in an evaluation; "
            f"only finished passes are compared"
        )
    counted = sum(len(candidate.samples) for candidate in tuning.candidates)
    if tried > 1 and counted == 0:
        return (
            f"none of {tried} trials counted, as choices inside them are unsettled, or neighbours "
            "had the processors"
        )
    waits_for: str | None = getattr(tuning.search, "waits_for", None)
    return waits_for


def report_selector(
    name: str,
    stages: int,
    decisions: Mapping[Hashable, Decision],
    tunings: Mapping[Hashable, Tuning],
    alternatives: Sequence[Alternative],
    costs: TrialCosts,
    savings: Savings,
    *,
    surcharges: Mapping[str, float],
    met: Mapping[Hashable, Met] | None,
    calls: Mapping[Hashable, int],
    earlier: Mapping[Hashable, Savings],
) -> SelectorReport:
    """Return the report of a live selector.

    savings: what is known of calls that Python answered, `calls` of them by problem, and `earlier`
    of earlier decisions. `met`, if it is known, counts the calls of all.
    """
    open_ones = {problem: one for problem, one in tunings.items() if problem not in decisions}
    problems = [
        report_problem(problem, decision, None, alternatives, surcharges)
        for problem, decision in decisions.items()
    ]
    problems += [
        report_problem(problem, None, tuning, alternatives, surcharges)
        for problem, tuning in open_ones.items()
    ]
    keys = [*decisions, *open_ones]
    if met is None:
        problems = [
            replace(
                one,
                settled_calls=calls.get(key, 0) if one.settled else 0,
                earlier_calls=earlier[key].calls // stages if key in earlier else 0,
                earlier_saved=earlier[key].seconds if key in earlier else 0.0,
            )
            for key, one in zip(keys, problems, strict=True)
        ]
    else:
        problems = [
            with_calls(one, met.get(key, Met(0))) for key, one in zip(keys, problems, strict=True)
        ]
        saved = sum(one.saved for one in problems)
        savings = Savings(sum(one.settled_calls for one in problems), saved)
    lost = costs.loss_seconds + sum(map(_lost, open_ones.values()))
    return SelectorReport(
        name, stages, tuple(problems), costs.trials, costs.trial_seconds, lost, *savings
    )


def with_calls(problem: ProblemReport, met: Met) -> ProblemReport:
    """Return the problem with the calls that its decision answered, and where they came from."""
    settled = max(0, met.calls - problem.trials) if problem.settled else 0
    return replace(
        problem,
        settled_calls=settled,
        places=met.places,
        refused_calls=min(met.refused, settled),
    )


def _lost(tuning: Tuning) -> float:
    """Return the seconds that trials of an unsettled problem took beyond its leader."""
    tried = [one for one in tuning.candidates if one.counted]
    best = min((one.seconds / one.counted for one in tried), default=0.0)
    return sum(max(0.0, one.seconds - one.counted * best) for one in tried)


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
        {},
    )


def _problem(
    problem: str,
    names: Sequence[str],
    decision: str | None,
    source: str | None,
    evidence: Iterable[Evidence],
    surcharges: Mapping[str, float],
) -> ProblemReport:
    known = {one.alternative: one for one in evidence}
    full = len(known[decision].samples) if decision is not None and decision in known else 0
    rows = [
        _alternative(name, known.get(name), decision, full, surcharges.get(name, 0.0))
        for name in names
    ]
    first = next((one.seconds for one in rows if one.name in known), None)
    if first is not None:
        rows = [replace(one, speedup=first / one.seconds) if one.seconds else one for one in rows]
    # An order is not verified. A locked run verifies nothing, and neither does one after it.
    is_verified = source not in ("locked", "forced", "pinned")
    noisy = is_verified and is_noisy(tuple(known.values()), decision)
    return ProblemReport(problem, decision, source, tuple(rows), noisy=noisy)


def _alternative(
    name: str, evidence: Evidence | None, decision: str | None, full: int, surcharge: float
) -> AlternativeReport:
    """Return one row without its speed-up. `full` is the number of trials of the chosen one."""
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
        seconds=None if seconds is None else seconds + surcharge,
        spread=spread(evidence.samples) if len(evidence.samples) > 1 else None,
        trials=len(evidence.samples),
        reason=evidence.disqualified,
        children=tuple((child.selector, child.problem) for child in evidence.children),
        surcharge=surcharge,
    )
