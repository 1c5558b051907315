"""Stores, which keep decisions beyond the process."""

from bestof.selection.store.default import close_default_store, default_store, import_default_store
from bestof.selection.store.url import open_store

__all__ = ["close_default_store", "default_store", "import_default_store", "open_store"]
