"""The errors of this project: one root, and a class for each case that a caller may handle."""

from __future__ import annotations

from collections.abc import Mapping


class BestofError(Exception):
    """The root of every error that bestof raises itself."""


class BestofWarning(RuntimeWarning):
    """Something went wrong that costs speed only: the call was answered."""


class InvalidArgument(BestofError, ValueError):
    """An argument is invalid. The message names it, says what was expected and what was given."""


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
    """A store cannot be read, written or understood."""


class StoreBusy(StoreError):
    """A store gave no answer within the milliseconds that a call waits. Ask again."""


class KernelError(BestofError, ValueError):
    """A native kernel cannot do what was asked. Nothing was written."""


class BenchError(BestofError, RuntimeError):
    """A benchmark cannot measure what was asked."""


class TorchError(BestofError, RuntimeError):
    """PyTorch, or the present state of the process, does not allow what was asked."""


class ProfileError(BestofError, RuntimeError):
    """A program cannot be profiled, or a profile cannot be read, compared or projected."""
