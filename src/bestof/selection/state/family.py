"""Selectors that do the same, such as one for each layer of a model, search together."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Hashable
from typing import Any, Protocol

from bestof.selection.policies.policy import Search
from bestof.selection.state.decision import Decision


class Member(Protocol):
    """What a family needs of the memory of a selector."""

    decisions: dict[Hashable, Decision]


class SharedSearch:
    """The search of one problem that several selectors take part in, with its samples.

    It refers to no selector and no function: a member that its program drops is freed.
    """

    __slots__ = ("__weakref__", "samples", "search")

    def __init__(self, search: Search, samples: list[list[float]]) -> None:
        self.search = search
        self.samples = samples  # by alternative, in list order


class Family:
    """The live selectors of one name, whose alternatives are the same functions.

    Methods of several objects of one class are the same functions, if the plain data that the
    objects hold is the same: their versions are equal (see `version.py`). Such selectors share the
    searches of problems that several of them meet, and the decisions, but no function, no
    comparison and no journal. They have one lock.

    An alternative that one of them disqualifies stays with the others.
    """

    __slots__ = ("__weakref__", "_members", "_process", "lock", "searches")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        # By problem, and by which alternatives take part. Each lives as long as one takes part in
        # it: a member may leave it for a search without the alternative that failed there.
        self.searches: weakref.WeakValueDictionary[
            tuple[Hashable, tuple[bool, ...]], SharedSearch
        ] = weakref.WeakValueDictionary()
        self._members: weakref.WeakSet[Any] = weakref.WeakSet()
        self._process = os.getpid()

    def join(self, member: Member) -> None:
        """Take in a member."""
        with self.lock:
            self._members.add(member)

    @property
    def is_shared(self) -> bool:
        """Whether it has several members."""
        return len(self._members) > 1

    def decision(self, problem: Hashable) -> Decision | None:
        """Return what a member has decided by measuring, with every alternative.

        Called with the lock held.
        """
        for member in list(self._members):
            decision: Decision | None = member.decisions.get(problem)
            if (
                decision is not None
                and decision.source in ("measured", "stored")
                and all(one.disqualified is None for one in decision.evidence)
            ):
                return decision
        return None

    def renew(self) -> threading.RLock:
        """Return the lock for a child process; a thread of the parent may hold the old one."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self.lock = threading.RLock()
        return self.lock


_families: weakref.WeakValueDictionary[Hashable, Family] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def family_of(*same: Any) -> Family:
    """Return the family of the selectors for which all these values are equal.

    If one of them has no hash, return a family for one selector alone.
    """
    try:
        hash(same)
    except TypeError:
        return Family()
    with _lock:
        found = _families.get(same)
        if found is None:
            found = _families[same] = Family()
        return found


def after_fork() -> None:
    """In a child process, replace the lock; another thread of the parent may hold it."""
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()
