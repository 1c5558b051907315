"""Where decisions outlive the process. The stores themselves arrive with the next merge: nothing is remembered yet."""

from __future__ import annotations

from bestof.selection.store.protocol import Store


def default_store() -> Store | None:
    """The store of the process."""
    return None


def open_store(url: str) -> Store | None:
    """The store that a URL names."""
    return None
