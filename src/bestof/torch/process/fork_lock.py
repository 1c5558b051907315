"""Locks that a forked child finds free."""

from __future__ import annotations

import os
import threading
import weakref

_LOCKS: weakref.WeakSet[ForkLock] = weakref.WeakSet()


class ForkLock:
    """A lock that its thread may take again, used by `with`.

    Only the forking thread lives on in a child. If another thread held the lock at that moment,
    nobody would release it there: the child gets a new one.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def take(self) -> bool:
        """Take the lock if no other thread has it; return whether `release` must follow."""
        return self._lock.acquire(blocking=False)

    def release(self) -> None:
        """Release what `take` took."""
        self._lock.release()

    def renew(self) -> None:
        """Replace the lock in a forked child, unless it is free or the forking thread's own."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


def _renew_locks() -> None:
    for lock in list(_LOCKS):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
