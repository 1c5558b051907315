"""How a problem is met for the first time: who applies, and which search begins."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from bestof.errors import InvalidArgument
from bestof.selection.alternative import Alternative, Function
from bestof.selection.policies import Neighbour, Race
from bestof.selection.policy import Policy, Search
from bestof.selection.problem import canonical
from bestof.selection.tuning import Candidate, Decision, Tuning

Neighbours = Callable[[Any], Iterable[Hashable]]

_NEIGHBOURS_READ = 64  # an iterable without an end must not hang the call
# What took this many times as long as the decision at a neighbour is not tried: sizes shift ratios by less than that.
HOPELESS = 3.0
_SHORT_RACE = 8  # rounds, the default of Neighbour: enough to find a neighbour's decision wrong by more than the tie


def open_tuning(
    problem: Hashable,
    alternatives: Sequence[Alternative],
    stages: Sequence[dict[int, Function]],
    policy: Policy,
) -> Tuning:
    """A problem on its way to a decision. An alternative whose `supports` raises does not apply, and is reported as
    disqualified."""
    candidates = []
    for alternative, functions in zip(alternatives, stages, strict=True):
        applies, reason = True, None
        if alternative.supports is not None:
            try:
                applies = bool(alternative.supports(problem))
            except Exception as error:
                reason = f"supports raised {type(error).__name__}: {error}"
        candidate = Candidate(alternative, functions, applies=applies)
        candidate.disqualified = reason
        candidates.append(candidate)
    search = start_search(policy, [alternative.name for alternative in alternatives])
    for position, candidate in enumerate(candidates):
        if not candidate.remains:
            search.drop(position)
    return Tuning(problem, canonical(problem), candidates, search)


def start_search(policy: Policy, names: Sequence[str]) -> Search:
    """The search of a policy; that of the default policy where it does not fit these names, as a policy for the whole
    process that fixes an alternative which this selector does not have."""
    try:
        return policy.start(names)
    except InvalidArgument:
        return Race().start(names)


def neighbour_policy(
    policy: Policy,
    neighbours: Neighbours,
    problem: Hashable,
    decisions: Mapping[Hashable, Decision],
    patience: int,
) -> Policy:
    """A short race that begins with the decision of the first settled neighbour, after so many calls of it, without
    what was hopeless there; `policy` itself where none is settled, or where it is no race. Raises what `neighbours`
    raises."""
    if not isinstance(policy, Race):
        return policy
    for other in islice(neighbours(problem), _NEIGHBOURS_READ):
        decision = decisions.get(other)
        if decision is not None:
            short = replace(policy, max_trials=min(_SHORT_RACE, policy.max_trials))
            return Neighbour(decision.alternative, short, _hopeless(decision), patience)
    return policy


def _hopeless(decision: Decision) -> frozenset[str]:
    """What took more than HOPELESS times as long as the decided alternative."""
    seconds = {
        one.alternative: one.seconds for one in decision.evidence if one.disqualified is None
    }
    best = seconds.get(decision.alternative)
    if best is None:
        return frozenset()
    return frozenset(
        name for name, took in seconds.items() if took is not None and took > HOPELESS * best
    )
