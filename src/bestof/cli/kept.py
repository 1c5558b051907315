"""The store that a subcommand works on."""

from __future__ import annotations

from bestof import selection
from bestof.errors import StoreError
from bestof.selection.store.protocol import Store


def kept(url: str | None) -> Store:
    """The store of this URL, None for this user's own; StoreError where it is switched off."""
    store = selection.default_store() if url is None else selection.open_store(url)
    if store is None:
        raise StoreError("the store is off, so nothing is kept; unset BESTOF_STORE, or name a store by --store URL")
    return store
