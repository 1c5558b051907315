"""The decorator form of a selector."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from types import MethodType
from typing import Any

from bestof.selection.best_of import BestOf


class Decorated(BestOf):
    """A selector in the place of a function. In a class, it acts as a method, as the function
    would."""

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)


def best_of(
    name: str,
    alternatives: Sequence[Any],
    get_problem_size: Callable[..., Hashable],
    **options: Any,
) -> Callable[[Callable[..., Any]], BestOf]:
    """Return a decorator that makes a function the first alternative of a BestOf, under its own
    name.

    Takes the arguments of BestOf; `alternatives` are the other ones. On a method, the alternatives
    and the problem function get the instance as their first argument.
    """

    def decorate(function: Callable[..., Any]) -> BestOf:
        first = (getattr(function, "__name__", "first"), function)
        selector = Decorated(name, [first, *alternatives], get_problem_size, **options)
        functools.update_wrapper(selector, function, updated=())
        return selector

    return decorate
