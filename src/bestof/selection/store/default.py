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
from bestof.selection.store.url import open_file, open_store

_lock = threading.RLock()  # a signal handler may call a selector while its thread opens the store
_forking: list[bool] = []  # whether the fork under way holds the lock
_opened: list[Store | None] = []  # empty before the first call; then what that call found


def default_store() -> Store | None:
    """The store of every selector that was given none; the same one at every call of a process.

    BESTOF_STORE names it (`off`: None; a URL or a path as in `open_store`, StoreError where it is
    none). Otherwise it is `bestof/decisions.sqlite` in the user's cache folder; where that cannot
    be had, a store in memory, with a warning.
    """
    found = _opened[:1]  # without the lock: after the first call there is nothing to wait for
    if found:
        return found[0]
    with _lock:
        if _opened:
            return _opened[0]
        store, failure = _open()
        if _opened:  # by a signal handler, meanwhile
            return _opened[0]
        _opened.append(store)
    if failure is not None:
        warn(
            f"decisions are kept in memory, for this process: {failure}; BESTOF_STORE=PATH names a "
            f"file for them, BESTOF_STORE=off keeps none"
        )
    return store


def close_default_store() -> None:
    """Close the default store; the next call of `default_store` opens one anew."""
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
    """Where programs of this user keep what can be made anew. RuntimeError where there is no
    home."""
    if sys.platform == "win32":
        setting, fallback = "LOCALAPPDATA", ("AppData", "Local")
    elif sys.platform == "darwin":
        setting, fallback = "", ("Library", "Caches")
    else:
        setting, fallback = "XDG_CACHE_HOME", (".cache",)
    folder = os.environ.get(setting, "") if setting else ""
    if (
        folder and Path(folder).is_absolute()
    ):  # the XDG specification: a relative path is invalid, and ignored
        return Path(folder)
    return Path.home().joinpath(*fallback)


def _before_fork() -> None:
    """Let another thread finish opening the store: in a child, a module that it was just importing
    would stay locked for good."""
    _forking.append(_lock.acquire(timeout=FORK_SECONDS))


def _after_fork_in_parent() -> None:
    if _forking.pop():
        _lock.release()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603  another thread of the parent may hold it still
    _lock = threading.RLock()
    _forking.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
