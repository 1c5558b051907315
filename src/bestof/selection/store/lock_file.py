"""The lock file: records and pins as sorted JSON text.

People review it, commit it, and copy it to other machines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import TypeVar

from bestof.errors import StoreError
from bestof.selection.store import lock_text
from bestof.selection.store.lock_field import Field, WrongField
from bestof.selection.store.pin_order import sorted_pins
from bestof.selection.store.record import Child, Evidence, Pin, Record
from bestof.selection.store.storable import storable

FORMAT = 1
_CLOCKS_DIFFER = 86_400.0  # seconds: a record from further in the future is wrong

_T = TypeVar("_T")


def export_records(records: Iterable[Record], pins: Iterable[Pin] = ()) -> str:
    """Return records and pins as sorted text, with one line for each alternative.

    Samples are written in microseconds with 6 significant digits, `updated` in milliseconds. Import
    returns these rounded values, and everything else exactly. A time in the future, of a wrong
    clock, is written as the present. A decision is left out if its
    alternative has no samples, because the decision has no effect then.

    Raises StoreError for a sample or a time that is not finite.
    """
    blocks = [_record_text(record) for record in sorted(records, key=lambda record: record.key)]
    lines = [_json(_pin_dict(pin)) for pin in sorted_pins(pins)]
    fields = (
        f'"format": {FORMAT}',
        f'"pins": [{_listed(lines)}]',
        f'"records": [{_listed(blocks)}]',
    )
    return "{\n" + ",\n".join(fields) + "\n}\n"


def import_records(text: str) -> list[Record]:
    """Return the records of a lock file, sorted.

    Raises StoreError with the line, the field, and what is wrong.
    """
    return _read(text, _records)


def import_pins(text: str) -> list[Pin]:
    """Return the pins of a lock file, sorted. Raises StoreError as `import_records` does."""
    return _read(text, _pins)


def _read(text: str, take: Callable[[Field], _T]) -> _T:
    document = Field(lock_text.read(text), "")
    try:
        document.get("format").wholly(FORMAT)
        document.refuse_others("format", "pins", "records")
        return take(document)
    except WrongField as wrong:
        line = lock_text.line_of(text, wrong.where)
        raise lock_text.error(line, f"{wrong.where or 'the file'}: {wrong.what}") from wrong


def _records(document: Field) -> list[Record]:
    records = [_record(field) for field in document.get("records").fields()]
    _refuse_twice("records", [record.key for record in records])
    return sorted(records, key=lambda record: record.key)


def _pins(document: Field) -> list[Pin]:
    pins = []
    for field in document.get("pins").fields():
        field.refuse_others("selector", "alternative", "problem", "host")
        pins.append(
            Pin(
                field.get("selector").text(),
                field.get("alternative").text(),
                field.get("problem").text_or_none(),
                field.get("host").text_or_none(),
            )
        )
    _refuse_twice("pins", [(pin.selector, pin.problem, pin.host) for pin in pins])
    return sorted_pins(pins)


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(_storable(value), ensure_ascii=True, allow_nan=False)


def _storable(value: object) -> object:
    """Return the value with every text converted by `storable`, so that import accepts it."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Mapping):
        return {name: _storable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    return value


def _listed(blocks: list[str]) -> str:
    return "\n" + ",\n".join(blocks) + "\n" if blocks else ""


def _pin_dict(pin: Pin) -> dict[str, str]:
    fields = {
        "selector": pin.selector,
        "problem": pin.problem,
        "host": pin.host,
        "alternative": pin.alternative,
    }
    return {name: text for name, text in fields.items() if text is not None}


def _record_text(record: Record) -> str:
    head = {
        "selector": record.selector,
        "problem": record.problem,
        "host": record.host,
        # A decision without samples has no effect: the next run measures again.
        "decision": record.decision if record.decision in _carried(record.evidence) else None,
    }
    # A clock that was ahead must not make a file that import refuses.
    ahead = isfinite(record.updated) and record.updated > time.time() + _CLOCKS_DIFFER
    written = time.time() if ahead else record.updated
    updated = _number(written, record, lambda value: f"{value:.3f}")
    items = sorted(record.evidence, key=lambda item: item.alternative)
    lines = [" " + _evidence_text(item, record) for item in items]
    return f'{_json(head)[:-1]}, "updated": {updated}, "evidence": [{_listed(lines)}]}}'


def _evidence_text(item: Evidence, record: Record) -> str:
    fields: dict[str, object] = {"alternative": item.alternative, "version": item.version}
    if item.disqualified is not None:
        fields["disqualified"] = item.disqualified
    if item.children:
        fields["children"] = [[child.selector, child.problem] for child in item.children]
    samples = ", ".join(
        _number(sample, record, lambda value: f"{value * 1e6:.6g}") for sample in item.samples
    )
    return f'{_json(fields)[:-1]}, "microseconds": [{samples}]}}'


def _number(value: float, record: Record, write: Callable[[float], str]) -> str:
    if not isfinite(value):
        raise StoreError(
            f"the record of {record.selector!r} for {record.problem} holds the number {value}, "
            "which JSON cannot express; clear the selector, and measure again"
        )
    return write(value)


def _record(field: Field) -> Record:
    field.refuse_others("selector", "problem", "host", "decision", "updated", "evidence")
    evidence = field.get("evidence")
    items = [_evidence(item) for item in evidence.fields()]
    _refuse_twice(f"{field.where}.evidence", [item.alternative for item in items])
    updated = field.get("updated").number()
    if updated > time.time() + _CLOCKS_DIFFER:
        raise field.get("updated").wrong("seconds since 1970, not in the future")
    decision = field.get("decision").text_or_none()
    if decision is not None and decision not in _carried(items):
        raise field.get("decision").wrong("an alternative with samples in this record's evidence")
    return Record(
        field.get("selector").text(),
        field.get("problem").text(),
        field.get("host").text(),
        decision,
        tuple(sorted(items, key=lambda item: item.alternative)),
        updated,
    )


def _carried(items: Iterable[Evidence]) -> set[str]:
    """Return the alternatives that a decision may name: those with samples, not disqualified."""
    return {item.alternative for item in items if item.samples and item.disqualified is None}


def _evidence(field: Field) -> Evidence:
    field.refuse_others("alternative", "version", "disqualified", "children", "microseconds")
    children = []
    for child in field.get("children").fields_or_none():
        pair = child.fields()
        if len(pair) != 2:
            raise child.wrong("a pair [selector, problem]")
        children.append(Child(pair[0].text(), pair[1].text()))
    return Evidence(
        field.get("alternative").text(),
        field.get("version").text(),
        tuple(sample.number(least=0.0) / 1e6 for sample in field.get("microseconds").fields()),
        field.get("disqualified").text_or_none(),
        tuple(children),
    )


def _refuse_twice(where: str, keys: Sequence[object]) -> None:
    seen = set()
    for index, key in enumerate(keys):
        if key in seen:
            raise WrongField(f"{where}[{index}]", f"{key!r} appears twice; expected it once")
        seen.add(key)
