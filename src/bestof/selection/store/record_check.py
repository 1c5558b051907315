"""Check what a store is asked to keep, before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

from bestof.errors import StoreError
from bestof.selection.store.record import Child, Evidence, Record


def fault_of(record: Record) -> str | None:
    """Return why a record cannot be kept, or None if it can.

    A database refuses some of these values, and returns others changed. The file would then be
    taken for damaged, or the row would be left out by every reader.
    """
    if not _are_texts(*record.key) or not _is_text_or_none(record.decision):
        return "the selector, the problem, the host or the decision is not a text"
    if not _is_finite(record.updated):
        return f"its time is {record.updated!r:.60}, which is not a finite number"
    for item in record.evidence:
        if (fault := _fault_of(item)) is not None:
            return fault
    return None


def check_keepable(records: Iterable[Record]) -> None:
    """Raise StoreError if one of the records cannot be kept."""
    for record in records:
        if (fault := fault_of(record)) is not None:
            raise StoreError(
                f"the record of {record.selector!r:.200} for {record.problem!r:.200} cannot be "
                f"kept: {fault}; nothing was changed"
            )


def _fault_of(item: Evidence) -> str | None:
    if not _are_texts(item.alternative, item.version) or not _is_text_or_none(item.disqualified):
        return "the name, the version or the reason of an alternative is not a text"
    for sample in item.samples:
        if not (_is_finite(sample) and sample >= 0):
            return f"a sample of {item.alternative!r:.200} is {sample!r:.60}, which is not a time"
    for child in item.children:
        if not isinstance(child, Child) or not _are_texts(child.selector, child.problem):
            return f"a child of {item.alternative!r:.200} is not a pair of texts"
    return None


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and type(value) is not bool and isfinite(value)
    except OverflowError:  # an integer of more than 308 digits
        return False


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _are_texts(*values: Any) -> bool:
    return all(isinstance(value, str) for value in values)
