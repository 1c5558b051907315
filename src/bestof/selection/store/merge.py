"""Merge two sets of records that changed separately, for example on two machines."""

from __future__ import annotations

from collections.abc import Iterable

from bestof.selection.store.record import Evidence, Pin, Record


def merge(ours: Iterable[Record], theirs: Iterable[Record]) -> list[Record]:
    """Return one record for every problem that either side knows, sorted.

    The order of the two sides does not matter. The evidence of both is united. If both have
    evidence of one alternative, these rules decide:

    - different versions: the evidence of the newer record stays.
    - the same version: a disqualification stays, or else the evidence with more samples.

    The decision is that of the newer record, or else that of the older one. An alternative that the
    merged evidence disqualifies is never the decision. Alternatives are sorted by name.
    """
    merged: dict[tuple[str, str, str], Record] = {}
    for record in (*ours, *theirs):
        other = merged.get(record.key)
        # Merge each record with itself first. This removes a decision that its own evidence
        # disqualifies.
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
    # The first two criteria matter. The others only make both sides choose the same.
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
    """Return the pins of `theirs` to write, and how many of `ours` stay against one of theirs.

    If both have a pin for the same place, `replace` says whether theirs replaces ours.
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
