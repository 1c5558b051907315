"""The arguments of a selector, checked and parsed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from bestof.configuration import parse_share
from bestof.errors import InvalidArgument
from bestof.selection.argument import (
    check_callable,
    check_name,
    check_neighbours,
    check_timer,
    parse_check_every,
    parse_drift,
    parse_own_policy,
    parse_own_store,
    parse_rounds,
)
from bestof.selection.call.guard import Guard, validate_check
from bestof.selection.identity.alternative import Alternative, parse_alternatives
from bestof.selection.policies import Rounds
from bestof.selection.policies.argument import check_count
from bestof.selection.policies.policy import Policy
from bestof.selection.state import registry
from bestof.selection.state.policy_choice import PolicyChoice
from bestof.selection.store.protocol import Store
from bestof.selection.trials.timer import LateTimes, Timer
from bestof.selection.trials.verifier import Verifier


@dataclass(frozen=True, slots=True)
class Settings:
    """The parsed arguments of a selector.

    `manner` is equal for selectors that choose among the same functions in the same manner. `paper`
    holds the three numbers of the original.
    """

    alternatives: tuple[Alternative, ...]
    names: list[str]
    paper: Rounds
    choice: PolicyChoice
    guard: Guard
    find_store: Callable[[], Store | None]
    manner: tuple[Hashable, ...]
    check_every: int | None
    max_problems: int
    max_searches: int | None
    patience: int
    share: float | None


def parse_settings(
    name: str,
    alternatives: Sequence[Any],
    get_problem_size: Callable[..., Hashable],
    rounds: int | None,
    pruning_speedup: float | None,
    prune_after_round: int | None,
    policy: Policy | str | None,
    check: Any,
    restore: Callable[..., Callable[[], object]] | None,
    store: Store | str | None,
    clock: Callable[[], float],
    max_problems: int,
    max_searches: int | None,
    check_every: int | None,
    neighbours: object,
    patience: int,
    on_event: Callable[..., object] | None,
    drift: bool | None,
    timer: Timer | None,
    budget: float | None,
) -> Settings:
    """Return the settings of a selector. Raises InvalidArgument, which names the argument."""
    check_name(name)
    where = f"BestOf({name!r})"
    parsed = parse_alternatives(name, alternatives)
    check_callable(where, "get_problem_size", get_problem_size)
    check_callable(where, "clock", clock)
    max_problems = check_count(where, "max_problems", max_problems, 2)
    if max_searches is not None:
        max_searches = check_count(where, "max_searches", max_searches, 1)
    for argument, value in (("restore", restore), ("on_event", on_event)):
        if value is not None:
            check_callable(where, argument, value)
    paper, by_rounds = parse_rounds(where, rounds, pruning_speedup, prune_after_round)
    names = [alternative.name for alternative in parsed]
    own_policy = parse_own_policy(where, policy, paper if by_rounds else None, names)
    check_neighbours(where, neighbours, own_policy)
    patience = check_count(where, "patience", patience, 0)
    check_timer(where, timer, parsed)
    if check is not None and restore is None and any(one.mutates for one in parsed):
        raise InvalidArgument(
            f"{where}: check: needs restore= where alternatives change their arguments"
        )
    own_store = parse_own_store(where, store)
    choice = PolicyChoice(own_policy, drift=parse_drift(where, drift) and timer is None)
    late = None if timer is None else LateTimes(timer)
    verifier = check if isinstance(check, Verifier) else None
    compared = None if verifier is not None else validate_check(name, check)
    return Settings(
        alternatives=parsed,
        names=names,
        paper=paper,
        choice=choice,
        guard=Guard(compared, restore, clock, late, verifier),
        manner=(
            *((one.name, one.version, one.mutates) for one in parsed),
            own_policy if isinstance(own_policy, Hashable) else id(own_policy),
            compared if isinstance(compared, float) else id(check),
            "shared" if store is None else id(own_store),
            # Identities: equal ones must not keep what belongs to one selector alive.
            *map(id, (restore, clock, neighbours, timer)),
            *(drift, max_searches, patience, check_every),
        ),
        find_store=registry.shared_store if store is None else lambda: own_store,
        check_every=parse_check_every(where, check, check_every),
        max_problems=max_problems,
        max_searches=max_searches,
        patience=patience,
        share=parse_share(budget, f"{where}: budget"),
    )
