"""Open a problem: find the alternatives that apply, and start the search."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from bestof.errors import InvalidArgument
from bestof.selection.alternative import Alternative, Function
from bestof.selection.candidate import Candidate
from bestof.selection.outside import reraise_from_outside
from bestof.selection.policies import Race
from bestof.selection.policy import Policy, Search
from bestof.selection.problem import canonical
from bestof.selection.tuning import Tuning


def open_tuning(
    problem: Hashable,
    alternatives: Sequence[Alternative],
    stages: Sequence[dict[int, Function]],
    policy: Policy,
    refused: Sequence[Candidate],
) -> Tuning:
    """Return the state of a new problem.

    If the `supports` of an alternative raises, the alternative does not apply. It is reported as
    disqualified. `refused` are the candidates of all alternatives for problems to which they do
    not apply.
    """
    candidates = []
    for alternative, functions, without in zip(alternatives, stages, refused, strict=True):
        applies, reason = True, None
        if alternative.supports is not None:
            try:
                applies = bool(alternative.supports(problem))
            except Exception as error:
                reraise_from_outside()
                reason = f"supports raised {type(error).__name__}: {error}"
        if not applies:
            candidates.append(without)
            continue
        candidate = Candidate(alternative, functions, applies=True)
        candidate.disqualified = reason
        candidates.append(candidate)
    search = start_search(policy, [alternative.name for alternative in alternatives])
    for position, candidate in enumerate(candidates):
        if not candidate.remains:
            search.drop(position)
    return Tuning(problem, canonical(problem), candidates, search)


def start_search(policy: Policy, names: Sequence[str]) -> Search:
    """Return the search of a policy for these names.

    If the policy does not fit them, return the search of the default policy. This happens if the
    policy of the process fixes an alternative that this selector does not have.
    """
    try:
        return policy.start(names)
    except InvalidArgument:
        return Race().start(names)
