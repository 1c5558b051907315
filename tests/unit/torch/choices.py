"""Choices in the place of the selector that would make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Choices(dict[Any, str]):
    """The chosen names by problem. `asked` is called after each question."""

    asked: Callable[[], object] = staticmethod(lambda: None)

    def chosen(self, problem: Any) -> str | None:
        name = self.get(problem)
        self.asked()
        return name

    @property
    def best_name(self) -> dict[Any, str]:
        return self


def choose(decisions: Any, **choices: Choices) -> Any:
    """Return these decisions, with choices in the place of some of the selectors."""
    return decisions._replace(**choices)
