"""Helpers for tests of selectors inside selectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bestof import BestOf


def through(*inner: BestOf) -> Callable[[Any], Any]:
    """An alternative that does nothing but call these."""

    def called(x: Any) -> Any:
        return [selector(x) for selector in inner][-1]

    return called


def children(selector: BestOf, *args: Any) -> dict[str, tuple[tuple[str, str], ...]]:
    return {row.name: row.children for row in selector.explain(*args).alternatives}


def calls_until_settled(selector: BestOf, *args: Any, limit: int = 200) -> int:
    for calls in range(limit):
        if selector.best_method_has_been_found(*args):
            return calls
        selector(*args)
    raise AssertionError(f"not settled after {limit} calls")
