"""The policy without a search: it always takes the named alternative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from bestof.errors import InvalidArgument
from bestof.selection.policies.argument import check_names


@dataclass(frozen=True, slots=True)
class Fixed:
    """Decides for the alternative `name` without a trial.

    If this alternative is dropped for a problem, there is no decision. `start` raises
    InvalidArgument if no alternative has this name.
    """

    name: str
    at_any_time: ClassVar[bool] = False

    @property
    def always(self) -> str:
        """The alternative that it decides for."""
        return self.name

    def start(self, alternatives: Sequence[str]) -> FixedSearch:
        """Return a search that is already over."""
        check_names("Fixed", alternatives)
        if self.name not in alternatives:
            raise InvalidArgument(
                f"Fixed: name: expected one of {', '.join(alternatives)}, got {self.name!r}"
            )
        return FixedSearch(list(alternatives).index(self.name))


class FixedSearch:
    """The search of `Fixed`. It is over from the start."""

    __slots__ = ("_position",)

    def __init__(self, position: int) -> None:
        self._position: int | None = position

    def ask(self) -> int | None:
        return None

    def tell(self, position: int, seconds: float) -> None:
        """Ignore the time."""

    def drop(self, position: int) -> None:
        """Take an alternative out. Without the fixed one, there is no decision."""
        if position == self._position:
            self._position = None

    @property
    def winner(self) -> int | None:
        """The named alternative, unless it was dropped."""
        return self._position

    @property
    def best(self) -> int | None:
        """The named alternative, unless it was dropped."""
        return self._position
