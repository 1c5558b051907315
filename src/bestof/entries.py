"""The entries of a dictionary that may change while they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def entries(mapping: Mapping[K, V]) -> list[tuple[K, V]]:
    """Return the entries of a dictionary that finalizers or other threads may change meanwhile.

    `list(mapping.items())` makes a tuple an entry. Up to Python 3.11, that may run the garbage
    collector, and with it whatever a finalizer or a weak reference calls. If this changes the
    dictionary, Python raises "dictionary changed size during iteration". A list of keys is made
    without such a step.
    """
    found = []
    for key in list(mapping):
        try:
            found.append((key, mapping[key]))
        except KeyError:
            continue  # it has just left
    return found
