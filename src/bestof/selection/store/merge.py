"""The merge of two sets of records that grew apart, as two machines or two branches leave them."""

from __future__ import annotations

from collections.abc import Iterable

from bestof.selection.record import Evidence, Pin, Record


def merge(ours: Iterable[Record], theirs: Iterable[Record]) -> list[Record]:
    """One record for every problem that either side knows, sorted; the same whichever side comes
    first.

    Evidence is united. Where both sides have evidence of one alternative, of different versions,
    that of the newer record stays; of the same version, a disqualification stays, and then the one
    with more samples. The decision is that of the newer record, of the older where the newer has
    none; never an alternative that the merged evidence disqualifies. Alternatives are sorted by
    name.
    """
    merged: dict[tuple[str, str, str], Record] = {}
    for record in (*ours, *theirs):
        other = merged.get(record.key)
        # First with itself: a decision that the record's own evidence disqualifies does not count
        # on either side.
        own = _united(record, record)
        merged[record.key] = own if other is None else _united(other, own)
    return [merged[key] for key in sorted(merged)]


def _united(one: Record, two: Record) -> Record:
    older, newer = sorted((one, two), key=lambda record: (record.updated, record.decision or ""))
    found = {item.alternative: item for item in older.evidence}
    for item in newer.evidence:
        other = found.get(item.alternative)
        if other is None or (item.version != other.version and older.updated < newer.updated):
            found[item.alternative] = item
        else:
            found[item.alternative] = max(other, item, key=_weight)
    refused = {item.alternative for item in found.values() if item.disqualified is not None}
    decisions = [
        name
        for name in (newer.decision, older.decision)
        if name is not None and name not in refused
    ]
    evidence = tuple(found[name] for name in sorted(found))
    return Record(*newer.key, decisions[0] if decisions else None, evidence, newer.updated)


def _weight(item: Evidence) -> tuple[object, ...]:
    # After the two that matter, anything that decides the same way on both sides.
    return (
        item.disqualified is not None,
        len(item.samples),
        item.version,
        item.samples,
        item.disqualified or "",
    )


def pins_to_write(
    ours: Iterable[Pin], theirs: Iterable[Pin], *, replace: bool
) -> tuple[list[Pin], int]:
    """Return those pins of `theirs` that are to be written, and how many of `ours` stay against one
    of `theirs`.

    For the same place, `replace` tells whether theirs replaces ours.
    """
    own = {(pin.selector, pin.problem, pin.host): pin.alternative for pin in ours}
    written, stayed = [], 0
    for pin in theirs:
        if not replace and own.get((pin.selector, pin.problem, pin.host), pin.alternative) != (
            pin.alternative
        ):
            stayed += 1
        else:
            written.append(pin)
    return written, stayed
