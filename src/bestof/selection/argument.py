"""Check the arguments of a selector.

Each message names the argument, what was expected, and what was given.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from bestof.errors import InvalidArgument
from bestof.selection.identity.alternative import Alternative
from bestof.selection.policies import Rounds
from bestof.selection.policies.argument import check_count
from bestof.selection.policies.parse import parse_any_policy
from bestof.selection.policies.policy import Policy, has_short_form
from bestof.selection.state.lock import current_lock
from bestof.selection.store import open_store
from bestof.selection.store.protocol import Store


def check_name(name: object) -> None:
    """Raise InvalidArgument unless `name` is a text that is not empty."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidArgument(f"BestOf: name: expected a text that is not empty; got {name!r}")


def check_callable(where: str, argument: str, value: object) -> None:
    """Raise InvalidArgument unless `value` can be called."""
    if not callable(value):
        raise InvalidArgument(
            f"{where}: {argument}: expected a callable; got {type(value).__name__}"
        )


def parse_own_policy(
    where: str, policy: Any, rounds: Rounds | None, names: Sequence[str]
) -> Policy | None:
    """Return the policy of a selector, or None if it was given none.

    The policy was given as an object, as text, or by the paper's three numbers (`rounds`). It is
    started once here, so that the error for a policy that does not fit these alternatives appears
    where the policy was given.
    """
    if policy is None:
        return rounds
    try:
        own = parse_any_policy(policy)
        own.start(names)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error}") from None
    return own


def parse_own_store(where: str, store: Any) -> Store | None:
    """Return the store that a selector was given as an object or as a URL; None for none.

    A locked run opens no store.
    """
    if isinstance(store, str):
        return None if current_lock() is not None else open_store(store)
    if store is not None and not all(
        callable(getattr(store, method, None)) for method in ("load", "save", "pinned")
    ):
        raise InvalidArgument(
            f"{where}: store: expected a store, its URL, or 'off'; got {type(store).__name__}"
        )
    return store  # type: ignore[no-any-return]  # Any until here: it came from the user


def parse_check_every(where: str, check: object, check_every: object) -> int | None:
    """Return `check_every` as an integer, or None.

    Raises InvalidArgument if it is given without `check`.
    """
    if check_every is None:
        return None
    count = check_count(where, "check_every", check_every, 1)
    if check is None:
        raise InvalidArgument(
            f"{where}: check_every: needs check= to compare with; got {check_every!r} without it"
        )
    return count


def parse_rounds(
    where: str, rounds: int | None, pruning_speedup: float | None, prune_after_round: int | None
) -> tuple[Rounds, bool]:
    """Return the paper's policy, and whether one of its three numbers was given."""
    given = {
        "rounds": rounds,
        "pruning_speedup": pruning_speedup,
        "prune_after_round": prune_after_round,
    }
    stated: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    try:
        return Rounds(**stated), bool(stated)
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}: {error}") from None


def check_neighbours(where: str, neighbours: object, policy: Policy | None) -> None:
    """Raise InvalidArgument unless `neighbours` is None or a callable.

    If there is a callable, the policy must have a short form.
    """
    if neighbours is None:
        return
    check_callable(where, "neighbours", neighbours)
    if policy is not None and not has_short_form(policy):
        raise InvalidArgument(
            f"{where}: neighbours: a neighbour's decision is verified by a short race; got the "
            f"policy {policy!r}"
        )


def check_timer(where: str, timer: object, alternatives: Sequence[Alternative]) -> None:
    """Raise InvalidArgument unless `timer` is None or a Timer. A Timer needs plain alternatives."""
    if timer is None:
        return
    if not callable(getattr(timer, "start", None)) or not hasattr(timer, "paused"):
        raise InvalidArgument(
            f"{where}: timer: expected an object with start and paused; got {type(timer).__name__}"
        )
    if alternatives[0].is_group:
        raise InvalidArgument(
            f"{where}: timer: a group is timed by the clock; give alternatives of one function each"
        )


def parse_drift(where: str, drift: object) -> bool:
    """Return whether a selector watches for drift.

    `drift` decides if it is not None, else the environment variable BESTOF_DRIFT. The default is
    True.
    """
    if isinstance(drift, bool):
        return drift
    if drift is not None:
        raise InvalidArgument(f"{where}: drift: expected True, False, or None; got {drift!r}")
    setting = os.environ.get("BESTOF_DRIFT", "").strip()
    if setting not in _SWITCH:
        raise InvalidArgument(f"{where}: BESTOF_DRIFT: expected on or off; got {setting!r}")
    return _SWITCH[setting]


_SWITCH = {"": True, "on": True, "off": False}
