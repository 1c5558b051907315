"""What becomes of stores when their process forks or ends."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import Protocol

from bestof.selection.store.worker import EXIT_SECONDS

FORK_SECONDS = 1.0  # a fork waits for work under way


class Watched(Protocol):
    """A store with a thread of its own."""

    def before_fork(self, deadline: float) -> bool:
        """End the thread, and let none start until the fork is over; return whether it ended."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self, *, paused: bool) -> None:
        """Begin with nothing of the parent's."""

    def at_exit(self, deadline: float) -> None:
        """Write what waits."""


_STORES: weakref.WeakSet[Watched] = weakref.WeakSet()
_FORKING: list[tuple[Watched, bool]] = []


def watch(store: Watched) -> None:
    """Tell a store when its process forks or ends, for as long as it lives."""
    _STORES.add(store)


def _before_fork() -> None:
    deadline = time.monotonic() + FORK_SECONDS
    for store in list(_STORES):
        _FORKING.append((store, store.before_fork(deadline)))


def _after_fork_in_parent() -> None:
    while _FORKING:
        _FORKING.pop()[0].after_fork_in_parent()


def _after_fork_in_child() -> None:
    while _FORKING:
        store, paused = _FORKING.pop()
        store.after_fork_in_child(paused=paused)


def _at_exit() -> None:
    deadline = time.monotonic() + EXIT_SECONDS
    for store in list(_STORES):
        store.at_exit(deadline)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
