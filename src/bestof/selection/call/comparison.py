"""What the call of an alternative is compared with: the first alternative's, on the same
arguments."""

from __future__ import annotations

from typing import Any

from bestof.selection.call.guard import Guard, own_copy
from bestof.selection.call.reference import UNKNOWN
from bestof.selection.call.snapshot import Place, Snapshot, argument


class Comparison:
    """The result of the reference, and what the reference did to the arguments.

    It is made before the reference is called. `take` notes the result, and puts the arguments back
    if the reference has changed them, so that the alternative begins as the reference did. Then
    `fault` says whether the alternative did the same: the result is as expected, the same arguments
    have changed, and to the same values.
    """

    __slots__ = ("_args", "_before", "_guard", "_kwargs", "_touched", "expected")

    def __init__(self, guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._guard = guard
        self._args = args
        self._kwargs = kwargs
        self._before = Snapshot(args, kwargs)
        self._touched: dict[Place, Any] = {}  # what the reference has made of each argument
        self.expected: Any = UNKNOWN  # until the reference has answered

    @property
    def changes_arguments(self) -> bool:
        """Whether the reference changes its arguments."""
        return bool(self._touched)

    def take(self, expected: Any, *, restores: bool) -> None:
        """Take the result of the reference; UNKNOWN if it failed.

        The result may be one of the arguments, which the next alternative changes. `restores` says
        that the user's function puts the arguments back.
        """
        check = self._guard.check
        for place in self._before.changed():
            self._touched[place] = own_copy(check, argument(place, self._args, self._kwargs))
        if expected is not UNKNOWN and (self._touched or restores):
            expected = own_copy(check, expected)
        self.expected = expected
        if not restores:
            self.put_back()

    def put_back(self) -> None:
        """Give the arguments the values from before the reference was called."""
        self._before.put_back()

    def fault(self, result: Any) -> str | None:
        """Return in what way a call was wrong, or None if it was right."""
        return self._guard.fault(self.expected, result) or self._fault_of_arguments()

    def _fault_of_arguments(self) -> str | None:
        changed = self._before.changed()
        for place in changed:
            if place not in self._touched:
                return f"it changed the argument {place!r}, which the first alternative leaves"
        for place, expected in self._touched.items():
            if place not in changed:
                return f"it left the argument {place!r}, which the first alternative changes"
            if callable(self._guard.check):  # it judges results, and may know nothing of arguments
                continue
            wrong = self._guard.fault(expected, argument(place, self._args, self._kwargs))
            if wrong is not None:
                return f"it changed the argument {place!r} to another value: {wrong}"
        return None
