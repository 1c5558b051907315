"""Tells which steps of a plan run native kernels only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from bestof import kernels

Function = TypeVar("Function", bound=Callable[..., Any])

_MARK = "__runs_native_kernels__"


def native_runner(function: Function) -> Function:
    """Mark a function that computes by native kernels only; return it.

    A few calls of PyTorch are allowed, such as for an address, or for a copy in a rare case: these
    run on one thread where a team of threads runs the step.
    """
    setattr(function, _MARK, True)
    return function


@dataclass(frozen=True, slots=True)
class Guarded:
    """A function that computes unless it returns False, and the one that computes then."""

    run: Callable[[], object]
    otherwise: Callable[[], object]

    def __call__(self) -> None:
        if self.run() is False:
            self.otherwise()


def is_native(run: Callable[..., Any]) -> bool:
    """Return whether a function is marked, or is a method of a plan of `bestof.kernels`.

    Of a guarded function, the first one counts.
    """
    if isinstance(run, partial):
        return is_native(run.func)
    if isinstance(run, Guarded):
        return is_native(run.run)
    owner = getattr(run, "__self__", None)
    if type(owner).__module__.startswith(f"{kernels.__name__}."):
        return True
    return bool(getattr(run, _MARK, False))
