"""Prepare stores for a fork and for the end of the process."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import Protocol

from bestof.selection.store.worker import EXIT_SECONDS

FORK_SECONDS = 1.0  # a fork waits at most this long for the thread


class Watched(Protocol):
    """A store with a thread of its own."""

    def before_fork(self, deadline: float) -> bool:
        """End the thread, and start none until the fork is over. Return whether it ended."""

    def after_fork_in_parent(self) -> None:
        """Allow the thread to start again."""

    def after_fork_in_child(self, *, paused: bool) -> None:
        """Start without the parent's thread and connection."""

    def at_exit(self, deadline: float) -> None:
        """Write the waiting records."""


_STORES: weakref.WeakSet[Watched] = weakref.WeakSet()
_FORKING: list[tuple[Watched, bool]] = []


def watch(store: Watched) -> None:
    """Call the methods of a store at each fork and at exit, as long as the store exists."""
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
