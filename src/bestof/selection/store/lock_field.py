"""A field of a lock file: a value that knows where it lies, and says so when it is wrong."""

from __future__ import annotations

from math import isfinite
from typing import Any

from bestof.errors import StoreError


class Field:
    """A value of a lock file, and where it lies: `records[2].evidence[0].version`."""

    __slots__ = ("_value", "where")

    def __init__(self, value: Any, where: str) -> None:
        self._value = value
        self.where = where

    def get(self, name: str) -> Field:
        """The field of an object; None where it is absent."""
        if not isinstance(self._value, dict):
            raise self.wrong("an object")
        return Field(self._value.get(name), f"{self.where}.{name}" if self.where else name)

    def refuse_others(self, *names: str) -> None:
        """Refuse an object with fields beside these: a mistyped name must not pass for an absent one."""
        if not isinstance(self._value, dict):
            raise self.wrong("an object")
        for name in self._value:
            if name not in names:
                raise StoreError(
                    f"lock file: {self.where or 'the file'}: there is no field {name!r}, only {names}"
                )

    def fields(self) -> list[Field]:
        """The elements of a list."""
        if not isinstance(self._value, list):
            raise self.wrong("a list")
        return [Field(value, f"{self.where}[{index}]") for index, value in enumerate(self._value)]

    def fields_or_none(self) -> list[Field]:
        """The elements of a list; none where it is absent."""
        return [] if self._value is None else self.fields()

    def text(self) -> str:
        """A string."""
        if not isinstance(self._value, str):
            raise self.wrong("a string")
        return self._value

    def text_or_none(self) -> str | None:
        """A string, or null."""
        return None if self._value is None else self.text()

    def number(self, *, least: float | None = None) -> float:
        """A finite number, not below `least`."""
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
        """Exactly this value."""
        if self._value != expected or isinstance(self._value, bool):
            raise self.wrong(repr(expected))

    def wrong(self, expected: str) -> StoreError:
        """The error for this field."""
        shown = repr(self._value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return StoreError(
            f"lock file: {self.where or 'the file'}: expected {expected}, got {shown}"
        )
