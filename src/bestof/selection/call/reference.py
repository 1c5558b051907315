"""Call the first alternative, whose results the other ones are compared with."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import CoroutineType
from typing import Any

from bestof.selection.hot_path import timed
from bestof.selection.interrupts import registered_handlers, reraise_from_outside
from bestof.selection.trials.trial import Trial, current_trial, detours, timed_later

UNKNOWN = object()  # the expected result, if there is none to compare with


class Reference(Trial):
    """One call of the first alternative, and its trial.

    The parent of the trial is the trial around the call that is compared. So choices inside the
    reference are no children of the alternative on trial, and the reference is not tried again
    inside itself. `failure` is the error that the reference raised.
    """

    __slots__ = ("failure",)

    def __init__(
        self, owner: object, problem: Hashable, position: int, parent: Trial | None
    ) -> None:
        super().__init__(owner, problem, position, parent)
        self.failure: Exception | None = None

    def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of a function, UNKNOWN if it failed, or a coroutine to `wait` for."""
        handlers = registered_handlers()
        try:
            return timed(detours, current_trial, self, _no_clock, function, args, kwargs)[1]
        except Exception as error:
            reraise_from_outside(handlers)
            self.failure = error
            return UNKNOWN

    async def wait(self, coroutine: CoroutineType[Any, Any, Any]) -> Any:
        """Return the result of a coroutine, or UNKNOWN if it failed."""
        handlers = registered_handlers()
        try:
            return (await timed_later(self, _no_clock, coroutine))[1]
        except Exception as error:
            reraise_from_outside(handlers)
            self.failure = error
            return UNKNOWN


def _no_clock() -> float:
    """Return a time; the reference is not timed."""
    return 0.0
