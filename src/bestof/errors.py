"""The errors of this project: one root, and a class for each thing that a caller may want to tell
apart."""

from __future__ import annotations

from collections.abc import Mapping


class BestofError(Exception):
    """The root of every error that this project raises by itself."""


class BestofWarning(RuntimeWarning):
    """Something went wrong that cost nothing but speed: the call was answered all the same."""


class InvalidArgument(BestofError, ValueError):
    """An argument that cannot be used; the message names it, and says what was expected and what
    came."""


class ProblemError(BestofError, TypeError):
    """A problem function returned something that cannot identify a problem."""


class StageError(BestofError, IndexError):
    """A group was called with a stage that it does not have."""


class WrongResult(BestofError):
    """An alternative's result differs from the first alternative's by more than `check` allows."""


class NoAlternative(BestofError, RuntimeError):
    """No alternative could answer a call.

    `reasons` maps the name of each alternative that failed to the exception that it raised.
    """

    def __init__(self, message: str, reasons: Mapping[str, BaseException] | None = None) -> None:
        super().__init__(message)
        self.reasons: dict[str, BaseException] = dict(reasons or {})


class StoreError(BestofError):
    """A store that cannot be read, written or understood."""


class StoreBusy(StoreError):
    """A store that gave no answer within the milliseconds that a call waits; ask again."""


class KernelError(BestofError, ValueError):
    """A native kernel was asked for something that it cannot do; nothing was written."""


class BenchError(BestofError, RuntimeError):
    """A benchmark cannot measure what it was asked to."""


class TorchError(BestofError, RuntimeError):
    """The integration into PyTorch cannot do what was asked of it in the present state of the
    process."""


class ProfileError(BestofError, RuntimeError):
    """A program cannot be profiled, or a profile cannot be read, compared or projected."""
