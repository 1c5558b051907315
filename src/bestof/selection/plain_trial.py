"""A trial in which nothing is to be checked or restored: what an Attempt does, in two thirds of the time.

Most trials are of this kind, and `bestof bench dispatch` says what they cost.
"""

from __future__ import annotations

from math import inf
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from bestof.selection.attempt import UNKNOWN, Attempt
from bestof.selection.group_pass import Pass
from bestof.selection.hot_path import timed
from bestof.selection.trial import Trial, current_trial, detours
from bestof.selection.tuning import SAMPLES_KEPT, Tuning

if TYPE_CHECKING:
    from bestof.selection.chooser import Chooser


def try_plainly(
    selector: Chooser,
    tuning: Tuning,
    stage: int,
    position: int,
    begun: Pass | None,
    parent: Trial | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The result of a call; where its alternative fails, or is a coroutine, an Attempt goes on with it.

    What an Attempt does in functions of its own stands here in one: each call would take a fiftieth of the trial.
    """
    problem = tuning.problem
    if parent is not None:
        if not getattr(tuning.search, "near_tie", False):
            parent.clean = False
        if parent.children is None:
            parent.children = {(selector.name, problem)}
        else:
            parent.children.add((selector.name, problem))
    candidate = tuning.candidates[position]
    trial = Trial(selector, problem, position, parent)
    failure: Exception | None = None
    try:
        seconds, result = timed(
            detours, current_trial, trial, selector._clock, candidate.stages[stage], args, kwargs
        )
    except Exception as error:
        failure = error
    except BaseException:
        if begun is not None:
            with selector._lock:
                tuning.passes.withdraw(begun)
        raise
    if failure is not None:
        attempt = Attempt(
            selector, tuning, stage, position, begun, _counts(selector, begun), parent, False
        )
        return attempt._turn_to_another(trial, failure, None).run(args, kwargs)
    if type(result) is CoroutineType:
        attempt = Attempt(
            selector, tuning, stage, position, begun, _counts(selector, begun), parent, False
        )
        return attempt._awaited(result, None, UNKNOWN, args, kwargs)
    journal = selector.journal
    with (
        selector._lock
    ):  # not acquire and try: an interrupt between the two would leave it held for good
        clean, whole, total = trial.clean, True, seconds
        if (
            not 0.0 <= seconds < inf
        ):  # a clock that goes backwards says nothing about the alternative
            seconds, total, clean = 0.0, 0.0, False
        if begun is not None:
            begun.seconds = total = begun.seconds + seconds
            begun.clean = clean = begun.clean and clean
            whole = tuning.passes.close_stage(begun, stage)
        if tuning.decision is not None:
            selector.conclude(tuning)
        elif (begun is not None and begun.timed) or not selector._grouped:
            if trial.children is not None:
                candidate.adopt(trial.children)
            journal.add_trial((problem, candidate.alternative.name, stage, seconds, clean))
            selector.trials += 1
            selector.trial_seconds += seconds
            candidate.seconds += seconds
            search = tuning.search
            if whole:
                candidate.calls += 1
                if clean:
                    if len(candidate.samples) < SAMPLES_KEPT:
                        candidate.samples.append(total)
                    tuning.unsaved = True
                    search.tell(position, total)
            if search.winner is not None or tuning.lone is not None:
                selector.conclude(tuning)
            elif begun is None and tuning.asks_ahead:
                tuning.asked = search.ask()
    if journal.undelivered:
        journal.deliver()
    return result


def _counts(selector: Chooser, begun: Pass | None) -> bool:
    """Whether the time of a call is evidence: that of a stage whose pass nobody knows is none."""
    return not selector._grouped if begun is None else begun.timed
