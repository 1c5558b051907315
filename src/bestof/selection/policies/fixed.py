"""The policy that does not search: always the alternative of this name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from bestof.errors import InvalidArgument
from bestof.selection.policies.argument import check_names


@dataclass(frozen=True, slots=True)
class Fixed:
    """Decides for `name` without a trial; a problem on which it was dropped has no decision, and
    nothing to ask.

    Raises InvalidArgument at `start` where no alternative has this name.
    """

    name: str
    at_any_time: ClassVar[bool] = False

    @property
    def always(self) -> str:
        """The alternative that it decides for."""
        return self.name

    def start(self, alternatives: Sequence[str]) -> FixedSearch:
        """Begin settled."""
        check_names("Fixed", alternatives)
        if self.name not in alternatives:
            raise InvalidArgument(
                f"Fixed: name: expected one of {', '.join(alternatives)}, got {self.name!r}"
            )
        return FixedSearch(list(alternatives).index(self.name))


class FixedSearch:
    """The search of `Fixed`: over before it began."""

    __slots__ = ("_position",)

    def __init__(self, position: int) -> None:
        self._position: int | None = position

    def ask(self) -> int | None:
        """None: there is nothing to try."""
        return None

    def tell(self, position: int, seconds: float) -> None:
        """Times change nothing."""

    def drop(self, position: int) -> None:
        """Dropping the one alternative leaves no decision; dropping another changes nothing."""
        if position == self._position:
            self._position = None

    @property
    def winner(self) -> int | None:
        """The alternative of this name, unless it was dropped."""
        return self._position

    @property
    def best(self) -> int | None:
        """The same."""
        return self._position
