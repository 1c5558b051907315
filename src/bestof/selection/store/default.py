"""The default store of the process."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from bestof.errors import StoreError
from bestof.selection.notice import warn
from bestof.selection.store.lifetime import FORK_SECONDS
from bestof.selection.store.memory import MemoryStore
from bestof.selection.store.protocol import Store
from bestof.selection.store.url import import_store, open_file, open_store

# reentrant: a signal handler may call a selector while this thread opens the store
_lock = threading.RLock()
_forking: list[bool] = []  # whether the current fork holds the lock
_opened: list[Store | None] = []  # empty before the first call, then its result


def default_store() -> Store | None:
    """Return the store of every selector that was given none. All calls return the same store.

    The environment variable BESTOF_STORE gives its URL or path (see `open_store`), or `off` for
    None. Otherwise it is `bestof/decisions.sqlite` in the user's cache folder. If that file cannot
    be made, it is a store in memory, and bestof warns.

    Raises StoreError if BESTOF_STORE names no valid store.
    """
    found = _opened[:1]  # Without the lock, because after the first call the result never changes.
    if found:
        return found[0]
    with _lock:
        if _opened:
            return _opened[0]
        store, failure = _open()
        if _opened:  # a signal handler has opened it meanwhile
            return _opened[0]
        _opened.append(store)
    if failure is not None:
        warn(
            f"decisions are kept in memory, and lost with this process: {failure}; set "
            "BESTOF_STORE to a path for them, or to 'off'"
        )
    return store


def import_default_store() -> None:
    """Import what the default store needs, so that the first call of a selector imports nothing.

    Nothing is opened.
    """
    import_store(os.environ.get("BESTOF_STORE", ""))


def close_default_store() -> None:
    """Close the default store. The next call of `default_store` opens it again."""
    with _lock:
        while _opened:
            store = _opened.pop()
            if store is not None:
                store.close()


def _open() -> tuple[Store | None, Exception | None]:
    setting = os.environ.get("BESTOF_STORE")
    if setting:
        return open_store(setting), None
    try:
        path = cache_folder() / "bestof" / "decisions.sqlite"
        path.parent.mkdir(parents=True, exist_ok=True)
        return open_file(path, claimed=True), None
    except (OSError, RuntimeError, StoreError) as error:
        return MemoryStore(), error


def cache_folder() -> Path:
    """Return the user's folder for files that can be made again.

    Raises RuntimeError if the user has no home folder.
    """
    if sys.platform == "win32":
        setting, fallback = "LOCALAPPDATA", ("AppData", "Local")
    elif sys.platform == "darwin":
        setting, fallback = "", ("Library", "Caches")
    else:
        setting, fallback = "XDG_CACHE_HOME", (".cache",)
    folder = os.environ.get(setting, "") if setting else ""
    if (
        folder and Path(folder).is_absolute()
    ):  # the XDG specification says to ignore a relative path
        return Path(folder)
    return Path.home().joinpath(*fallback)


def _before_fork() -> None:
    """Wait until no other thread is opening the store.

    Otherwise a module that this thread is importing would stay locked in the child for ever.
    """
    _forking.append(_lock.acquire(timeout=FORK_SECONDS))


def _after_fork_in_parent() -> None:
    if _forking.pop():
        _lock.release()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may hold the old one
    _lock = threading.RLock()
    _forking.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
