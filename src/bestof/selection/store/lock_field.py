"""A field of a lock file: a value and its path in the file."""

from __future__ import annotations

from math import isfinite
from reprlib import Repr
from typing import Any

from bestof.selection.store.storable import is_storable

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SHORT.maxlevel = 2


class WrongField(Exception):
    """A field that is wrong: its path, and what is wrong."""

    def __init__(self, where: str, what: str) -> None:
        super().__init__(where, what)
        self.where = where
        self.what = what


class Field:
    """A value in a lock file, and its path, such as `records[2].evidence[0].version`."""

    __slots__ = ("_value", "where")

    def __init__(self, value: Any, where: str) -> None:
        self._value = value
        self.where = where

    def get(self, name: str) -> Field:
        """Return a field of an object. Its value is None if it is absent."""
        if not isinstance(self._value, dict):
            raise self.wrong("an object")
        return Field(self._value.get(name), f"{self.where}.{name}" if self.where else name)

    def refuse_others(self, *names: str) -> None:
        """Raise WrongField if the object has other fields.

        A mistyped name must not count as an absent field.
        """
        if not isinstance(self._value, dict):
            raise self.wrong("an object")
        for name in self._value:
            if name not in names:
                raise WrongField(
                    self.where, f"unknown field {name!r}; the fields are {', '.join(names)}"
                )

    def fields(self) -> list[Field]:
        """Return the elements of a list."""
        if not isinstance(self._value, list):
            raise self.wrong("a list")
        return [Field(value, f"{self.where}[{index}]") for index, value in enumerate(self._value)]

    def fields_or_none(self) -> list[Field]:
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
        """Raise WrongField unless the value is `expected`."""
        if self._value != expected or isinstance(self._value, bool):
            raise self.wrong(repr(expected))

    def wrong(self, expected: str) -> WrongField:
        """Return the error for this field."""
        return WrongField(self.where, f"expected {expected}, got {_SHORT.repr(self._value)}")
