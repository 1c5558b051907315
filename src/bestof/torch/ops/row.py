"""One implementation of an operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bestof.accuracy import Accuracy, allows

P = TypeVar("P")
"""What identifies a call: a hashable value with a canonical text."""


def _always(_problem: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Row(Generic[P]):
    """One implementation of an operation.

    name: in stores, reports and BESTOF_FORCE.
    function: (PyTorch's own kernel, problem, operands...) -> what PyTorch's own kernel returns,
        with the same sizes, strides and dtypes.
    supports: whether it can compute a problem at all.
    promising: whether it is worth a trial. It is asked only where `supports` holds.
    accuracy: the strictest level at which it may be chosen.
    formerly: the places that the function had in earlier versions of bestof. Their evidence holds.
    """

    name: str
    function: Callable[..., Any]
    supports: Callable[[P], bool] = _always
    promising: Callable[[P], bool] = _always
    accuracy: Accuracy = "exact"
    formerly: tuple[str, ...] = ()

    def is_tried(self, problem: P) -> bool:
        """Return whether a search tries the row. A problem has a level of accuracy, or is exact."""
        level: Accuracy = getattr(problem, "accuracy", "exact")
        return allows(level, self.accuracy) and self.supports(problem) and self.promising(problem)
