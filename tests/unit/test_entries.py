"""Reading a dictionary that a weak reference changes meanwhile."""

from __future__ import annotations

import gc
import weakref

from bestof.entries import entries


class _Owner:
    def __init__(self) -> None:
        self.itself = self  # a cycle: only the garbage collector ends its life


def test_a_collection_while_entries_are_read_removes_one() -> None:
    mapping = {number: str(number) for number in range(5000)}
    gc.collect()
    owner = _Owner()  # young: the next collection sees it
    watch = weakref.ref(owner, lambda _: mapping.pop(0, None))
    before = gc.get_threshold()
    try:
        gc.set_threshold(1000)  # 5,000 tuples are made: one collection at least
        del owner
        found = entries(mapping)
    finally:
        gc.set_threshold(*before)
    assert watch() is None
    assert found[1:] == [(number, str(number)) for number in range(1, 5000)]


def test_entries_of_an_empty_dictionary() -> None:
    assert entries({}) == []
