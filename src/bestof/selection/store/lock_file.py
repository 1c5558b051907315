"""The lock file: records and pins as sorted JSON text.

People review it, commit it, and copy it to other machines.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from reprlib import Repr
from typing import Any, NamedTuple, TypeVar

from bestof.errors import InvalidArgument, StoreError
from bestof.selection.store.pin_order import sorted_pins
from bestof.selection.store.record import Child, Evidence, Pin, Record
from bestof.selection.store.storable import is_storable, storable

FORMAT = 1
_MOST_CHARACTERS = 256 << 20  # 400,000 problems; a device such as /dev/zero never ends
_CLOCKS_DIFFER = 86_400.0  # seconds: a record from further in the future is wrong

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_CONFLICT = re.compile(r"^(<{7}|={7}|>{7}|\|{7})(?= |$)", re.MULTILINE)
_NO_NUMBER = re.compile(r"-?Infinity|NaN")


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel = 2


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


def read_lock_file(path: str) -> str:
    """Return the text of a lock file. Raises InvalidArgument if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgument(f"cannot read the lock file {path!r}: {reason}") from error
    if len(text) > _MOST_CHARACTERS:
        raise InvalidArgument(
            f"cannot read the lock file {path!r}: it has more than {_MOST_CHARACTERS >> 20} "
            "million characters; export fewer selectors"
        )
    return text


def _read(text: str, take: Callable[[_Field], _T]) -> _T:
    document = _Field(_json_of(text), "")
    try:
        document.get("format").wholly(FORMAT)
        document.refuse_others("format", "pins", "records")
        return take(document)
    except _WrongField as wrong:
        line = _line_of(text, wrong.where)
        raise _error(line, f"{wrong.where or 'the file'}: {wrong.what}") from wrong


def _records(document: _Field) -> list[Record]:
    records = [_record(field) for field in document.get("records").fields()]
    _refuse_twice("records", [record.key for record in records])
    return sorted(records, key=lambda record: record.key)


def _pins(document: _Field) -> list[Pin]:
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


def _record(field: _Field) -> Record:
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


def _evidence(field: _Field) -> Evidence:
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
            raise _WrongField(f"{where}[{index}]", f"{key!r} appears twice; expected it once")
        seen.add(key)


class _WrongField(Exception):
    """A field that is wrong: its path, and what is wrong."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(where, what)
        self.where = where
        self.what = what


class _Field:
    """A value in a lock file, and its path, such as `records[2].evidence[0].version`."""

    __slots__ = ("_value", "where")

    def __init__(self, value: Any, where: str) -> None:
        self._value = value
        self.where = where

    def get(self, name: str) -> _Field:
        """Return a field of an object. Its value is None if it is absent."""
        if not isinstance(self._value, dict):
            raise self.wrong("an object")
        return _Field(self._value.get(name), f"{self.where}.{name}" if self.where else name)

    def refuse_others(self, *names: str) -> None:
        """Raise _WrongField if the object has other fields.

        A mistyped name must not count as an absent field.
        """
        if not isinstance(self._value, dict):
            raise self.wrong("an object")
        for name in self._value:
            if name not in names:
                raise _WrongField(
                    self.where, f"unknown field {name!r}; the fields are {', '.join(names)}"
                )

    def fields(self) -> list[_Field]:
        """Return the elements of a list."""
        if not isinstance(self._value, list):
            raise self.wrong("a list")
        return [_Field(value, f"{self.where}[{index}]") for index, value in enumerate(self._value)]

    def fields_or_none(self) -> list[_Field]:
        """Return the elements of a list, or nothing if it is absent."""
        return [] if self._value is None else self.fields()

    def text(self) -> str:
        """Return a string."""
        if not isinstance(self._value, str):
            raise self.wrong("a string")
        if not is_storable(self._value):
            raise self.wrong("text without lone surrogates (halves of UTF-16 pairs)")
        return self._value

    def text_or_none(self) -> str | None:
        """Return a string, or None for null."""
        return None if self._value is None else self.text()

    def number(self, *, least: float | None = None) -> float:
        """Return a finite number of at least `least`."""
        value = self._value
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or (least is not None and value < least)
        ):
            raise self.wrong("a number" if least is None else f"a number from {least:g} on")
        try:
            number = float(value)
        except OverflowError:
            raise self.wrong("a number that fits a float") from None
        if not isfinite(number):
            raise self.wrong("a number that fits a float")
        return number

    def wholly(self, expected: object) -> None:
        """Raise _WrongField unless the value is `expected`."""
        if self._value != expected or isinstance(self._value, bool):
            raise self.wrong(repr(expected))

    def wrong(self, expected: str) -> _WrongField:
        """Return the error for this field."""
        return _WrongField(self.where, f"expected {expected}, got {_SHORT.repr(self._value)}")


class _Repeated(ValueError):
    pass


class _NoNumber(ValueError):
    pass


def _json_of(text: str) -> Any:
    """Return the content of the text.

    Raises StoreError with the line and the reason if the text is not one JSON document.
    """
    if text.startswith("\ufeff"):
        raise _error(1, "the file begins with a byte order mark; save it as UTF-8 without one")
    conflict = _CONFLICT.search(text)
    if conflict is not None:
        line = _line(text, conflict.start())
        raise _error(line, f"{conflict[1]} is the conflict marker of a merge; resolve the conflict")
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as wrong:
        raise _error(wrong.lineno, f"not JSON: {wrong.msg}, column {wrong.colno}") from wrong
    except RecursionError:
        raise _error(
            1, "lists or objects are nested too deeply; a lock file has six levels"
        ) from None
    except _Repeated as wrong:
        line = next((place.line for place in _places(text) if place.repeated), 1)
        raise _error(line, f"the field {wrong.args[0]!r} appears twice in one object") from wrong
    except _NoNumber as wrong:
        places = (place.line for place in _places(text) if _NO_NUMBER.fullmatch(place.token))
        raise _error(next(places, 1), f"{wrong.args[0]} is not a number in JSON") from wrong
    except ValueError as wrong:  # an integer of more than 4,300 digits
        raise _error(1, f"a number cannot be read: {wrong}") from wrong


def _line_of(text: str, where: str) -> int:
    """Return the line of a field, such as `records[2].evidence[0].version`.

    If the field is absent, return the line of the value around it.
    """
    line = 1
    for place in _places(text):
        if place.path == where:
            return place.line
        if where.startswith((place.path + ".", place.path + "[")):
            line = place.line
    return line


def _error(line: int, what: str) -> StoreError:
    return StoreError(f"lock file, line {line}: {what}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Repeated(name)
            seen.add(name)
    return found


def _refuse_constant(name: str) -> None:
    raise _NoNumber(name)


class _Place(NamedTuple):
    """A value of the document: its path, its first token, its line, and whether its name is a
    duplicate."""

    path: str
    token: str
    line: int
    repeated: bool


class _Level:
    """An object or a list that is being read."""

    def __init__(self, path: str, opening: str) -> None:
        self.path = path
        self.is_object = opening == "{"
        self.index = 0
        self.name: str | None = None
        self.names: set[str] = set()
        self.repeated = False

    def next_path(self) -> str:
        if not self.is_object:
            return f"{self.path}[{self.index}]"
        return f"{self.path}.{self.name}" if self.path else str(self.name)


def _places(text: str) -> Iterator[_Place]:
    """Yield every value of a JSON text in order, up to the first error."""
    levels: list[_Level] = []
    line, last = 1, 0
    for found in _TOKEN.finditer(text):
        token = found[0]
        line += text.count("\n", last, found.start())
        last = found.start()
        inner = levels[-1] if levels else None
        if token in "}]":
            if not levels:
                return
            levels.pop()
        elif token == ",":
            if inner is not None:
                inner.index, inner.name = inner.index + 1, None
        elif token == ":":
            continue
        elif inner is not None and inner.is_object and inner.name is None:
            try:
                inner.name = json.loads(token)
            except ValueError:
                return
            inner.repeated = inner.name in inner.names
            inner.names.add(inner.name)
        else:
            path = inner.next_path() if inner is not None else ""
            yield _Place(path, token, line, inner is not None and inner.repeated)
            if token in "{[":
                levels.append(_Level(path, token))


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1
