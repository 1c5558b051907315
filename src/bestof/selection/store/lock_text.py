"""Read the text of a lock file as JSON, and find the line of each value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from bestof.errors import StoreError

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_CONFLICT = re.compile(r"^(<{7}|={7}|>{7}|\|{7})(?= |$)", re.MULTILINE)
_NO_NUMBER = re.compile(r"-?Infinity|NaN")


class _Repeated(ValueError):
    pass


class _NoNumber(ValueError):
    pass


def read(text: str) -> Any:
    """Return the content of the text.

    Raises StoreError with the line and the reason if the text is not one JSON document.
    """
    if text.startswith("\ufeff"):
        raise error(1, "the file begins with a byte order mark; save it as UTF-8 without one")
    conflict = _CONFLICT.search(text)
    if conflict is not None:
        line = _line(text, conflict.start())
        raise error(line, f"{conflict[1]} is the conflict marker of a merge; resolve the conflict")
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as wrong:
        raise error(wrong.lineno, f"not JSON: {wrong.msg}, column {wrong.colno}") from wrong
    except RecursionError:
        raise error(
            1, "lists or objects are nested too deeply; a lock file has six levels"
        ) from None
    except _Repeated as wrong:
        line = next((place.line for place in _places(text) if place.repeated), 1)
        raise error(line, f"the field {wrong.args[0]!r} appears twice in one object") from wrong
    except _NoNumber as wrong:
        places = (place.line for place in _places(text) if _NO_NUMBER.fullmatch(place.token))
        raise error(next(places, 1), f"{wrong.args[0]} is not a number in JSON") from wrong
    except ValueError as wrong:  # an integer of more than 4,300 digits
        raise error(1, f"a number cannot be read: {wrong}") from wrong


def line_of(text: str, where: str) -> int:
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


def error(line: int, what: str) -> StoreError:
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
