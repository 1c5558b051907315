"""What choosing the passes of a layer together has cost and saved."""

from __future__ import annotations

from collections import Counter, defaultdict

from bestof.selection.reports.report import ProblemReport
from bestof.selection.state.journal import TrialEntry
from bestof.torch.dispatch.convolution.decisions import INDEPENDENT, JOINT, SHARED
from bestof.torch.dispatch.convolution.layer import ConvolutionLayer


def sharing(layer: ConvolutionLayer) -> tuple[float, float]:
    """Return what the trials of the groups cost and what sharing saves, beyond those of the passes.

    Both are seconds. A counted trial of a group contains no trial of a pass. The sum over counted
    trials therefore leaves out what the passes have booked.
    """
    taken: defaultdict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
    seconds: defaultdict[str, defaultdict[tuple[str, int], float]] = defaultdict(
        lambda: defaultdict(float)
    )
    for entry in layer.layer.journal.entries():
        if isinstance(entry, TrialEntry) and entry.counted:
            text = entry.problem.canonical()  # type: ignore[attr-defined]
            taken[text][entry.alternative, entry.stage] += 1
            seconds[text][entry.alternative, entry.stage] += entry.seconds
    shared = {problem.canonical(): count for problem, count in layer.sharing_calls.totals().items()}
    loss = saved = 0.0
    for problem in layer.layer.report().problems:
        text, decision = problem.problem, problem.decision
        median = {alternative.name: alternative.seconds for alternative in problem.alternatives}
        chosen = best(problem) if decision is None else median[decision]
        if chosen is None:
            continue
        for name in (JOINT, INDEPENDENT, SHARED):
            passes = taken[text][name, 1]
            if passes:  # leave out forward passes whose backward pass never came or did not count
                forward = seconds[text][name, 0] * min(1.0, passes / max(1, taken[text][name, 0]))
                loss += max(0.0, forward + seconds[text][name, 1] - passes * chosen)
        independent = median[INDEPENDENT]
        if decision == SHARED and independent is not None:
            saved += max(0, shared.get(text, 0) - taken[text][SHARED, 1]) * (independent - chosen)
    return loss, saved


def best(problem: ProblemReport) -> float:
    """Return the seconds of the leading alternative; 0 if nothing was measured."""
    return min(
        (one.seconds for one in problem.alternatives if one.seconds is not None), default=0.0
    )
