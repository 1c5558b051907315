"""Open the store of a subcommand."""

from __future__ import annotations

import os
from pathlib import Path

from bestof import selection
from bestof.errors import InvalidArgument, StoreError
from bestof.selection.store.protocol import Store


def kept(url: str | None) -> Store:
    """Return the store at this URL; None stands for the user's store.

    Raises StoreError if the store is off.
    """
    store = selection.default_store() if url is None else named(url)
    if store is None:
        raise StoreError(
            "the store is off, so no decisions are kept; unset BESTOF_STORE, or pass --store URL"
        )
    return store


def named(url: str, option: str = "--store") -> Store | None:
    """Return the store that `option` names. Raises InvalidArgument if the place is unusable."""
    try:
        store = selection.open_store(url)
    except StoreError as error:
        raise InvalidArgument(f"{option}: {error}") from error
    path = None if store is None else store.url.partition("sqlite:///")[2]
    if path:
        _check_place(Path(path), option)
    return store


def _check_place(path: Path, option: str) -> None:
    """Raise InvalidArgument for a file that can neither be read nor made."""
    if path.exists():
        if not os.access(path, os.R_OK):
            raise InvalidArgument(f"{option}: '{path}' cannot be read: permission denied")
        return
    folder = next((parent for parent in path.parents if parent.exists()), path.parent)
    if not folder.is_dir():
        raise InvalidArgument(f"{option}: '{path}' cannot be made: '{folder}' is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidArgument(f"{option}: '{path}' cannot be made: permission denied in '{folder}'")
