"""The live selectors of the process, and what they share: the default policy, the default store,
one switch."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Hashable
from typing import Any, ClassVar, Protocol

from bestof.errors import StoreError
from bestof.selection.argument import parse_any_policy
from bestof.selection.forced_choice import orders
from bestof.selection.identity import has_code_of, places
from bestof.selection.notice import warn
from bestof.selection.policy import Policy, always
from bestof.selection.report import Report, SelectorReport
from bestof.selection.store import default_store
from bestof.selection.store.protocol import Store
from bestof.selection.trial import detours, forget_other_detours


class Selector(Protocol):
    """What the registry asks of a selector."""

    name: str
    number: int
    alternative_names: tuple[str, ...]
    versions: tuple[str, ...]

    def report(self) -> SelectorReport:
        """Return what is known of every problem."""

    def flush(self) -> None:
        """Keep the evidence of problems that are not settled."""

    def after_fork(self) -> None:
        """Begin anew in a child process."""

    def asked_store(self) -> Store | None:
        """Return the store that this selector has asked."""


# Weak: a selector that its program dropped is freed, with all that it remembers.
_selectors: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.RLock()  # iterating over a WeakSet fails where another thread adds to it


class AgreeingSelector(Protocol):
    """What ranks that agree need to know of a selector."""

    name: str

    def race_again(self, problem: Hashable) -> bool:
        """Search a settled problem anew; false if it is not settled here."""


class Agreement(Protocol):
    """Makes all ranks of a job follow one search for each problem."""

    def policy(self, selector: AgreeingSelector, problem: Hashable, policy: Policy) -> Policy:
        """Return the policy for a problem that is met, or searched again."""


class Defaults:
    """What selectors use that were given nothing of their own, and whether any could use it."""

    policy: Policy | None = None
    store: Store | None = None
    store_named = False
    agreement: Agreement | None = None
    first_only: ClassVar[
        list[object]
    ] = []  # whether it has anything can be seen without the interpreter's lock
    last_number = -1
    fixed_met = False  # whether any selector had the alternative that the policy fixes


_forced_met: set[str] = set()  # the selectors that were made and are named in BESTOF_FORCE


_READ_SECONDS_AT_EXIT = 0.5
_FIRST_ONLY = object()
_said: set[tuple[str, ...]] = set()  # what a user was told, and is told once a process


def register(selector: Selector) -> None:
    """Make a selector known to reports; its number gives the order in which selectors were made."""
    with _lock:
        Defaults.last_number += 1
        selector.number = Defaults.last_number
        _selectors.add(selector)
    if os.environ.get("BESTOF_FORCE"):
        _forced_met.update(name for name, _ in orders() if name == selector.name)
    _meet_fixed([selector])


def _meet_fixed(made: list[Selector]) -> None:
    policy = Defaults.policy
    if always(policy) is not None and any(
        always(policy) in selector.alternative_names for selector in made
    ):
        Defaults.fixed_met = True


def selectors() -> list[Selector]:
    """The live selectors, oldest first."""
    with _lock:
        live = list(_selectors)
    return sorted(live, key=lambda selector: selector.number)


def namesake(name: str, own: tuple[str, ...], version: str) -> str | None:
    """Return where the function of a stored version lives, unless it is an earlier version of one's
    own.

    It is another function if it lives elsewhere than the versions `own` of a selector of this name,
    or if another live selector of the name has it.
    """
    there = places(version)
    if there and not {place for one in own for place in places(one)}.issuperset(there):
        return ", ".join(there)
    for other in selectors():
        if other.name != name or other.versions == own or version not in other.versions:
            continue
        if not any(has_code_of(one, version) for one in own):
            return f"{', '.join(there)} of another selector in this program"
    return None


def is_news(*what: str) -> bool:
    """Return whether this is said for the first time in this process; from now on it is not."""
    with _lock:
        news = what not in _said
        _said.add(what)
    return news


def use_policy(policy: Policy | str | None) -> None:
    """Set the policy of every selector that was not given one of its own; None goes back to the
    default.

    A policy, or its text (`"rounds:rounds=3"`). Raises InvalidArgument for anything else, before
    anything is changed. Holds for problems met from now on. Where it does not fit a selector
    (`Fixed`, and no alternative of that name), the default is used there.
    """
    Defaults.policy = None if policy is None else parse_any_policy(policy)
    Defaults.fixed_met = False
    _meet_fixed(selectors())


def shared_policy() -> Policy | None:
    """What `use_policy` was told."""
    return Defaults.policy


def use_store(store: Store | None) -> None:
    """Set the store of every selector that was not given one of its own; None: remember nothing
    beyond the process."""
    Defaults.store = store
    Defaults.store_named = True


def shared_store() -> Store | None:
    """What `use_store` was told, else the store that the environment names, else the one in the
    cache folder."""
    if Defaults.store_named:
        return Defaults.store
    return default_store()


def use_first_only(on: bool) -> None:
    """Switch every selector to its first alternative, or back to choosing."""
    if on and not Defaults.first_only:
        detours.insert(0, None)  # None in front: the hot path calls the first alternative at once
        Defaults.first_only.append(_FIRST_ONLY)
    elif not on and Defaults.first_only:
        detours.remove(None)
        Defaults.first_only.clear()


def report_all() -> Report:
    """What is known of every live selector, oldest first."""
    return Report(tuple(selector.report() for selector in selectors()))


def _flush_all() -> None:
    for selector in selectors():
        selector.flush()


def unmet_orders() -> list[str]:
    """What was ordered from outside, and no selector of this process could obey, in words; to be
    told at its end. A process that made no selector was not meant."""
    if Defaults.last_number < 0:
        return []
    unmet = [
        f"BESTOF_FORCE: {name}={alternative} was for no selector: none of this name was made"
        for name, alternative in orders()
        if name not in _forced_met
    ]
    policy = Defaults.policy
    if always(policy) is not None and not Defaults.fixed_met:
        unmet.append(
            f"the policy fixed:{always(policy)} was for no selector: none has an alternative of "
            "this name"
        )
    return unmet + _unmet_pins()


def _unmet_pins() -> list[str]:
    """Return what the pins for selectors that nobody has say, in the stores that this process has
    asked."""
    made = selectors()
    names = {selector.name for selector in made}
    stores = {id(store): store for store in (selector.asked_store() for selector in made) if store}
    unmet = []
    for store in stores.values():
        try:
            unmet += _unmet_pins_of(store, names)
        except StoreError:  # such as one that the program has closed
            continue
    return unmet


def _unmet_pins_of(store: Any, names: set[str]) -> list[str]:
    listed = getattr(store, "pins", None)  # a user's store may keep none
    return [
        f"the pin {pin.selector}={pin.alternative} was for no selector: none of this name was "
        "made, and the store has no times of one; take it back by `bestof store unpin "
        f"{pin.selector}`"
        for pin in (listed() if callable(listed) else ())
        if pin.selector not in names and not store.records(pin.selector)
    ]


def _tell_unmet_orders() -> None:
    for selector in selectors():
        # A busy store must not hold up the end of the process.
        limit = getattr(selector.asked_store(), "limit_waits", None)
        if callable(limit):
            limit(_READ_SECONDS_AT_EXIT)
    for unmet in unmet_orders():
        warn(unmet)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = threading.RLock()
    forget_other_detours()
    for selector in selectors():
        selector.after_fork()


atexit.register(_flush_all)
atexit.register(_tell_unmet_orders)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
