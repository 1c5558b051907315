"""Keep the live selectors of the process, and what they share.

Shared are the default policy, the default store, the agreement between ranks, and one switch that
sends all calls to the first alternatives. At the end of the process, unsettled evidence is saved,
and orders that no selector could obey are warned of.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, Protocol

from bestof.errors import InvalidArgument, StoreError
from bestof.selection.identity.version import has_code_of, places
from bestof.selection.notice import warn
from bestof.selection.policies.parse import parse_any_policy
from bestof.selection.policies.policy import Policy, always
from bestof.selection.policies.window import Window
from bestof.selection.state import family
from bestof.selection.state.budget import Budget
from bestof.selection.state.forced_choice import orders
from bestof.selection.state.live_checks import LiveChecks
from bestof.selection.state.lock import Lock, current_lock, read_lock, set_lock
from bestof.selection.store import default_store
from bestof.selection.store.protocol import Store
from bestof.selection.trials.trial import detours, forget_other_detours


class Selector(Protocol):
    """What the registry needs of a selector."""

    name: str
    number: int
    versions: tuple[str, ...]

    @property
    def trials(self) -> int:
        """The number of timed calls."""

    @property
    def decided(self) -> int:
        """The number of problems in memory for which one of several alternatives was chosen."""

    def follows(self, alternative: str) -> bool:
        """Return whether a policy of the process that fixes this alternative holds here."""

    def flush(self) -> None:
        """Save the evidence of unsettled problems."""

    def after_fork(self) -> None:
        """Prepare for a child process."""

    def asked_store(self) -> Store | None:
        """Return the store, or None if this selector has met no problem yet."""

    def meet_lock(self, lock: Lock) -> None:
        """Let the lock count its records that fit."""


# Weak references: a selector that its program has dropped is freed, with its decisions.
_selectors: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.RLock()  # iterating over a WeakSet fails if another thread adds to it


class AgreeingSelector(Protocol):
    """What the agreement between ranks needs of a selector."""

    name: str

    def race_again(self, problem: Hashable) -> bool:
        """Search a settled problem again. Return false if it is not settled here."""


class Agreement(Protocol):
    """Makes all ranks of a job follow one search for each problem."""

    @property
    def has_ranks(self) -> bool:
        """Whether this process is one of several ranks at present."""

    def policy(
        self, selector: AgreeingSelector, problem: Hashable, policy: Policy, reopens: bool = False
    ) -> Policy:
        """Return the policy for a problem that is met or searched again.

        reopens: this rank searches it again first.
        """


class Defaults:
    """The settings for selectors that have none of their own.

    `fixed_met` says whether the alternative that the default policy fixes holds for any selector.
    `fixed_refused` are the problems that it cannot compute, in words.
    """

    policy: Policy | None = None
    window: Window | None = None  # the steps in which bestof's own selectors search
    store: Store | None = None
    store_named = False
    agreement: Agreement | None = None
    live_checks = LiveChecks()
    budget = Budget()
    first_only: ClassVar[
        list[object]
    ] = []  # A list, not a bool: native code can read its length without the interpreter's lock.
    last_number = -1
    fixed_met = False
    fixed_refused: ClassVar[dict[str, None]] = {}


def ranks_agree() -> bool:
    """Return whether this process tries what all ranks of a job try.

    Then nothing that one rank alone knows, such as its budget, may keep it from a trial.
    """
    return Defaults.agreement is not None and Defaults.agreement.has_ranks


def account_of(clock: Callable[[], float]) -> Budget:
    """Return the account of the process, or a new one for a clock that is not the process's."""
    return Defaults.budget if clock is time.perf_counter else Budget(clock)


_forced_met: set[str] = set()  # the selectors in BESTOF_FORCE that exist or existed


_READ_SECONDS_AT_EXIT = 0.5
_REFUSED_KEPT = 1000  # problems
_FIRST_ONLY = object()
_said: set[tuple[str, ...]] = set()  # the messages that are given once per process


def register(selector: Selector) -> None:
    """Add a selector to the reports, and give it the next number.

    Numbers give the order in which selectors were made.
    """
    lock = current_lock()
    if lock is not None:
        selector.meet_lock(lock)
    with _lock:
        Defaults.last_number += 1
        selector.number = Defaults.last_number
        _selectors.add(selector)
    if os.environ.get("BESTOF_FORCE"):
        _forced_met.update(name for name, _ in orders() if name == selector.name)
    meet_fixed([selector])


def meet_fixed(made: list[Selector]) -> None:
    """Note whether any of these selectors has the alternative that the default policy fixes, and no
    policy of its own."""
    fixed = always(Defaults.policy)
    if fixed is not None and any(selector.follows(fixed) for selector in made):
        Defaults.fixed_met = True


def selectors() -> list[Selector]:
    """Return the live selectors, oldest first."""
    with _lock:
        live = list(_selectors)
    return sorted(live, key=lambda selector: selector.number)


def namesake(name: str, own: tuple[str, ...], version: str) -> str | None:
    """Return the place of the function of a stored version, if it is another function of the same
    name.

    Return None if the version is an earlier one of the function that this selector has. It is
    another function if it lives in none of the places of `own`, the versions of the selector. It is
    also another function if another live selector of this name has it.
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
    """Return true when a message is given for the first time in this process."""
    with _lock:
        news = what not in _said
        _said.add(what)
    return news


def refuse_fixed(where: str) -> None:
    """Note a problem that the alternative of a fixed policy cannot compute."""
    if len(Defaults.fixed_refused) < _REFUSED_KEPT:
        Defaults.fixed_refused[where] = None


def use_policy(policy: Policy | str | None) -> None:
    """Set the policy of every selector that has none of its own.

    `policy` is a policy, its text (`"rounds:rounds=3"`), or None for the default. It holds for
    problems that are met from now on. A selector to which it does not apply (`Fixed`, and no
    alternative of that name) uses the default policy.

    Raises InvalidArgument for anything else, before anything is changed.
    """
    Defaults.policy = None if policy is None else parse_any_policy(policy)
    Defaults.fixed_met = False
    Defaults.fixed_refused.clear()
    meet_fixed(selectors())


def shared_policy() -> Policy | None:
    """Return the policy that `use_policy` has set, or None."""
    return Defaults.policy


def windows() -> list[Window]:
    """Return the windows of steps that are in force for the process."""
    found = (Defaults.policy, Defaults.window)
    return [one for one in found if isinstance(one, Window)]


def count_step() -> None:
    """Count one finished step of the program, for the windows of the process."""
    for one in windows():
        one.step()


def use_store(store: Store | None) -> None:
    """Set the store of every selector that has none of its own.

    None: decisions are kept in memory only, until the process ends.
    """
    Defaults.store = store
    Defaults.store_named = True


def shared_store() -> Store | None:
    """Return the store that selectors share.

    In a locked run this is the lock. Else it is the store of the last `use_store`. Without one, it
    is the store that the environment names, or else the one in the cache folder.
    """
    lock = current_lock()
    if lock is not None:
        return lock
    if Defaults.store_named:
        return Defaults.store
    return default_store()


def use_lock(path: str) -> Lock:
    """Let every selector take the decisions in a lock file, and nothing else, to the end.

    No store is opened. Raises InvalidArgument if trials were made before, if the store has decided
    problems before, if the process has another lock, or if no record fits this machine; StoreError
    if the file is no lock file. Nothing is changed then.
    """
    former, trials = current_lock(), trials_of_all()
    if former is not None:
        if former.path == os.path.abspath(path):
            return former
        raise InvalidArgument(
            f"the process is locked to {former.path}, and cannot be locked to {path} too"
        )
    lock, decided = read_lock(path), sum(one.decided for one in selectors())
    if trials or decided:
        raise InvalidArgument(
            f"the lock {path} comes too late: {trials} trials were made and {decided} problems "
            "decided before, and what was decided would stay; pass the lock to the first call of "
            "`enable`, or set BESTOF_LOCKED"
        )
    set_lock(lock)
    for selector in selectors():
        selector.meet_lock(lock)
    return lock


def use_first_only(on: bool) -> None:
    """Switch every selector to its first alternative, or back to choosing."""
    if on and not Defaults.first_only:
        # None in front makes the hot path call the first alternative directly.
        detours.insert(0, None)
        Defaults.first_only.append(_FIRST_ONLY)
    elif not on and Defaults.first_only:
        detours.remove(None)
        Defaults.first_only.clear()


def trials_of_all() -> int:
    """Return the number of timed calls of every live selector. It costs no report."""
    with _lock:
        return sum(selector.trials for selector in _selectors)


def search_count() -> int:
    """Return a number that grows with each call in which a search goes on, or waits for its budget
    or for neighbours.

    If calls do not change it, they are decided. The number of trials does not say so: while a
    budget is used up, undecided problems make none.
    """
    return trials_of_all() + Defaults.budget.waited + Defaults.budget.crowded


def _flush_all() -> None:
    for selector in selectors():
        selector.flush()


def unmet_orders() -> list[str]:
    """Return a message for each order from outside that no selector of this process could obey.

    Orders come from BESTOF_FORCE, from a policy that fixes an alternative, and from pins. The list
    is empty if the process has made no selector. Windows of steps in a program without steps count
    too.
    """
    if Defaults.last_number < 0:
        return []
    unmet = [
        f"BESTOF_FORCE: {name}={alternative} had no effect: the program made no selector of this "
        "name"
        for name, alternative in orders()
        if name not in _forced_met
    ]
    policy = Defaults.policy
    if always(policy) is not None and not Defaults.fixed_met:
        unmet.append(
            f"the policy fixed:{always(policy)} had no effect: no selector without a policy of its "
            "own has an alternative of this name"
        )
    refused = list(Defaults.fixed_refused)
    if refused:
        more = f", and for {len(refused) - 1} more" if len(refused) > 1 else ""
        unmet.append(
            f"the policy fixed:{always(policy)} was not obeyed for {refused[0]}{more}: it does not "
            "apply there; the first alternative that does was taken"
        )
    unmet += [
        f"the window of steps {one.start_step}-{one.stop_step} had no effect: the program counted "
        "no step; step an optimizer of PyTorch while bestof.torch is enabled, or call "
        "bestof.torch.step(), or Window.step() for selectors of your own"
        for one in windows()
        if one.steps == 0 and current_lock() is None
    ]
    return unmet + _unmet_pins()


def _unmet_pins() -> list[str]:
    """Return a message for each pin whose selector does not exist, in the stores in use."""
    made = selectors()
    names = {selector.name for selector in made}
    stores = {id(store): store for store in (selector.asked_store() for selector in made) if store}
    unmet = []
    for store in stores.values():
        try:
            unmet += _unmet_pins_of(store, names)
        except StoreError:  # for example, the program has closed it
            continue
    return unmet


def _unmet_pins_of(store: Any, names: set[str]) -> list[str]:
    listed = getattr(store, "pins", None)  # a user's own store need not have pins
    return [
        f"the pin {pin.selector}={pin.alternative} had no effect: the program made no selector of "
        "this name, and the store has no times of one; remove the pin with `bestof store unpin "
        f"{pin.selector}`"
        for pin in (listed() if callable(listed) else ())
        if pin.selector not in names and not store.records(pin.selector)
    ]


def _tell_unmet_orders() -> None:
    for selector in selectors():
        # A busy store must not delay the end of the process.
        limit = getattr(selector.asked_store(), "limit_waits", None)
        if callable(limit):
            limit(_READ_SECONDS_AT_EXIT)
    for unmet in unmet_orders():
        warn(unmet)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may hold the old one
    _lock = threading.RLock()
    family.after_fork()
    forget_other_detours()
    for selector in selectors():
        selector.after_fork()


atexit.register(_flush_all)
atexit.register(_tell_unmet_orders)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
