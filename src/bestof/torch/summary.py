"""What tuning came to in this process: what was chosen for each convolution, what it saves, and what it cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bestof.selection import BestOf
from bestof.selection.journal import TrialEntry
from bestof.selection.report import ProblemReport
from bestof.torch.convolution.layer import AS_IS, INDEPENDENT, JOINT, SHARED, ConvolutionLayer
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.enable import convolution_overrides


@dataclass(frozen=True, slots=True)
class PassSummary:
    """One problem of one pass (`name`). Seconds are medians a call, of PyTorch as it is and of what was chosen, None
    where nothing was measured; `calls` are those of this process, by whichever alternative."""

    name: str
    problem: str
    chosen: str | None
    seconds_as_is: float | None
    seconds_chosen: float | None
    calls: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What tuning came to in this process.

    layers: distinct convolutions, by whichever passes they were met. seconds_saved: by the settled calls, against
    PyTorch as it is, by the medians of either; where the search cost more than this, the sum of both is a loss.
    seconds_tuning: what the trials took beyond calls of what was chosen, or leads so far. trials: timed calls.
    """

    layers: int
    passes: tuple[PassSummary, ...]
    seconds_saved: float
    seconds_tuning: float
    trials: int


def summary() -> Summary:
    """What tuning came to in this process so far, also after `disable`; all zero where nothing was enabled."""
    total = Summary(0, (), 0.0, 0.0, 0)
    for override in convolution_overrides():
        one = _summary(override.layer)
        total = Summary(
            total.layers + one.layers,
            total.passes + one.passes,
            total.seconds_saved + one.seconds_saved,
            total.seconds_tuning + one.seconds_tuning,
            total.trials + one.trials,
        )
    return total


def _summary(layer: ConvolutionLayer) -> Summary:
    rows = []
    saved = unsettled = 0.0
    convolutions: set[ConvProblem] = set()
    joint = layer.joint
    for selector, counts in layer.passes:
        calls = counts.totals()
        convolutions.update(
            problem._replace(bias=False, grad_layout="", frozen=False) for problem in calls
        )
        by_text = {problem.canonical(): count for problem, count in calls.items()}
        as_is = {
            problem.canonical()
            for problem in calls
            if problem._replace(bias=False, grad_layout="") in joint
        }
        tried: defaultdict[str, list[float]] = defaultdict(list)
        for entry in _trials(selector):
            tried[entry.problem.canonical()].append(entry.seconds)  # type: ignore[attr-defined]
        for problem in selector.report().problems:
            row = _row(selector.name.removeprefix("convolution "), problem, by_text)
            if row.problem in as_is:  # whatever won this pass by itself
                row = replace(row, chosen=AS_IS, seconds_chosen=row.seconds_as_is)
            rows.append(row)
            trials = tried[row.problem]
            if row.seconds_as_is is not None and row.seconds_chosen is not None:
                saved += max(0, row.calls - len(trials)) * (row.seconds_as_is - row.seconds_chosen)
            if problem.decision is None:
                unsettled += max(0.0, sum(trials) - len(trials) * _best(problem))
    loss, saved_by_sharing = _sharing(layer)
    selectors = (*(selector for selector, _ in layer.passes), layer.layer)
    return Summary(
        len(convolutions),
        tuple(rows),
        saved + saved_by_sharing,
        sum(selector.report().loss_seconds for selector, _ in layer.passes) + unsettled + loss,
        sum(selector.trials for selector in selectors),
    )


def _row(name: str, problem: ProblemReport, calls: Mapping[str, int]) -> PassSummary:
    seconds = {alternative.name: alternative.seconds for alternative in problem.alternatives}
    chosen = None if problem.decision is None else seconds[problem.decision]
    return PassSummary(
        name,
        problem.problem,
        problem.decision,
        seconds["as is"],
        chosen,
        calls.get(problem.problem, 0),
    )


def _sharing(layer: ConvolutionLayer) -> tuple[float, float]:
    """What the trials of the groups cost beyond those of the passes, and what sharing saves beyond the passes' choices.

    A group's trial that counts contains no trial of a pass, and one that contains some does not count; so summing
    those that count leaves out what the passes have booked already.
    """
    taken: defaultdict[str, Counter[tuple[str, int]]] = defaultdict(Counter)
    seconds: defaultdict[str, defaultdict[tuple[str, int], float]] = defaultdict(
        lambda: defaultdict(float)
    )
    for entry in _trials(layer.layer):
        if entry.counted:
            text = entry.problem.canonical()  # type: ignore[attr-defined]
            taken[text][entry.alternative, entry.stage] += 1
            seconds[text][entry.alternative, entry.stage] += entry.seconds
    shared = {problem.canonical(): count for problem, count in layer.sharing_calls.totals().items()}
    loss = saved = 0.0
    for problem in layer.layer.report().problems:
        text, decision = problem.problem, problem.decision
        median = {alternative.name: alternative.seconds for alternative in problem.alternatives}
        chosen = _best(problem) if decision is None else median[decision]
        if chosen is None:
            continue
        for name in (JOINT, INDEPENDENT, SHARED):
            passes = taken[text][name, 1]
            if (
                passes
            ):  # forwards whose backward never came, or did not count, are taken out of the sum
                forward = seconds[text][name, 0] * min(1.0, passes / max(1, taken[text][name, 0]))
                loss += max(0.0, forward + seconds[text][name, 1] - passes * chosen)
        independent = median[INDEPENDENT]
        if decision == SHARED and independent is not None:
            saved += max(0, shared.get(text, 0) - taken[text][SHARED, 1]) * (independent - chosen)
    return loss, saved


def _best(problem: ProblemReport) -> float:
    """Seconds of the alternative that leads, for as long as there is no decision; 0 where nothing counted yet."""
    return min(
        (one.seconds for one in problem.alternatives if one.seconds is not None), default=0.0
    )


def _trials(selector: BestOf) -> list[TrialEntry]:
    return [entry for entry in selector.journal.entries() if isinstance(entry, TrialEntry)]
