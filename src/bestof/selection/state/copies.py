"""Make copies of selectors, for `copy`, `copy.deepcopy` and `pickle`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from bestof.selection.state.decision import Decision
from bestof.selection.state.knowledge import Knowledge
from bestof.selection.state.tuning import new_tuning

# Attributes that a program has set, in the dictionary of a selector and in its slots.
Beside = tuple[dict[str, Any], dict[str, Any]]

Made = TypeVar("Made")


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
            tuning = new_tuning(
                decision.problem,
                *(known.alternatives, known.stages),
                *(known.choice.current(), known.refused),
                wanted=[decision.alternative],
            )
            if not tuning.candidates[decision.position].remains:
                continue
            tuning.inherit(decision, recursive=one.recursive, unverified=one.unverified)
            known.hold(tuning)
            known.decisions[decision.problem] = decision
            known.publish(tuning)


def own_slots(kind: type, base: type) -> list[str]:
    """Return the slots that subclasses of `base` add, by the names under which they are stored."""
    names = []
    for owner in kind.__mro__:
        slots = () if owner in base.__mro__ else owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{owner.__name__.lstrip('_')}{name}" if private else name)
    return names


def remade(
    kind: type[Made],
    base: Any,
    given: dict[str, Any],
    beside: Beside,
    taught: list[Teaching],
) -> Made:
    """Return a new selector of a class; `base` is the class that takes the arguments `given`."""
    return fill(kind.__new__(kind), base, given, beside, taught)


def fill(
    made: Made, base: Any, given: dict[str, Any], beside: Beside, taught: list[Teaching]
) -> Made:
    """Initialise a selector from arguments, attributes and decisions, and return it."""
    base.__init__(made, **given)
    attributes, slots = beside
    vars(made).update(attributes)
    for name, value in slots.items():
        setattr(made, name, value)
    learn(vars(made)["_knowledge"], taught)
    return made
