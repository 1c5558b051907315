"""Hand the decisions of a selector on to its copy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bestof.selection.decision import Decision
from bestof.selection.knowledge import Knowledge
from bestof.selection.open_tuning import open_tuning


@dataclass(frozen=True, slots=True)
class Teaching:
    """A decision for a copy of its selector.

    `recursive` says that the winner calls the selector again with the same problem. `unverified`
    holds the stages that the winner of a stored decision has not answered yet.
    """

    decision: Decision
    recursive: bool = False
    unverified: frozenset[int] = frozenset()


def teachings(known: Knowledge) -> list[Teaching]:
    """Return every decision of a selector."""
    with known.lock:
        taught = []
        for problem, decision in known.decisions.items():
            tuning = known.tunings.get(problem)
            if tuning is None:
                taught.append(Teaching(decision))
            else:
                recursive = tuning.candidates[decision.position].recursive
                taught.append(Teaching(decision, recursive, frozenset(tuning.unverified)))
        return taught


def learn(known: Knowledge, taught: Iterable[Teaching]) -> None:
    """Take over decisions from a selector of the same alternatives."""
    with known.lock:
        for one in taught:
            decision = one.decision
            stays_open = known.check_every is not None or one.recursive or one.unverified
            if not stays_open:
                known.decisions[decision.problem] = decision
                known.remember(decision.problem, known.new_winner(decision))
                continue
            tuning = open_tuning(
                decision.problem,
                *(known.alternatives, known.stages),
                *(known.choice.current(), known.refused),
            )
            if not tuning.candidates[decision.position].remains:
                continue
            tuning.inherit(decision, recursive=one.recursive, unverified=one.unverified)
            known.hold(tuning)
            known.decisions[decision.problem] = decision
            known.publish(tuning)
