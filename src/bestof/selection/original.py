"""What programs written for the original BestOf read: its attributes, worked out from what a
selector knows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from math import isnan, nan
from typing import Any

from bestof.selection.decision import Decision
from bestof.selection.knowledge import Knowledge


def best_positions(known: Knowledge) -> dict[Hashable, int]:
    """Return the position of the chosen alternative by problem; -1 for a problem without a
    decision."""
    return defaultdict(lambda: -1, ((p, d.position) for p, d in _decided(known)))


def best_names(known: Knowledge) -> dict[Hashable, str]:
    """Return the name of the chosen alternative by problem; "None" for a problem without a
    decision."""
    return defaultdict(lambda: "None", ((p, d.alternative) for p, d in _decided(known)))


def best_functions(known: Knowledge) -> dict[Hashable, Any]:
    """Return the chosen function by problem; None for a problem without a decision, and of
    groups."""
    found = [] if known.grouped else _decided(known)
    return defaultdict(lambda: None, ((p, known.functions[d.position][0]) for p, d in found))


def best_groups(known: Knowledge) -> dict[Hashable, Any]:
    """Return the chosen functions by problem, by stage; None for a problem without a decision, and
    without groups."""
    found = _decided(known) if known.grouped else []
    return defaultdict(lambda: None, ((p, list(known.functions[d.position])) for p, d in found))


def medians(known: Knowledge) -> dict[Hashable, list[float]]:
    """Return the median seconds of each alternative in list order by problem; NaN for one without a
    sample."""
    with known.lock:
        evidence = {p: tuple(c.evidence() for c in t.candidates) for p, t in known.tunings.items()}
        evidence.update((problem, d.evidence) for problem, d in known.decisions.items())
    found = {}
    for problem, listed in evidence.items():
        seconds = {one.alternative: one.seconds for one in listed}
        times = [seconds.get(name) for name in known.names]
        found[problem] = [nan if took is None else took for took in times]
    return found


def speedups(known: Knowledge) -> dict[Hashable, float]:
    """Return how many times the chosen alternative is faster than the slowest one, by measured
    problem."""
    measured, found = medians(known), {}
    for problem, decision in _decided(known):
        times = [took for took in measured.get(problem, ()) if not isnan(took)]
        if times and decision.seconds:
            found[problem] = max(times) / decision.seconds
    return found


def _decided(known: Knowledge) -> list[tuple[Hashable, Decision]]:
    with known.lock:
        return list(known.decisions.items())
