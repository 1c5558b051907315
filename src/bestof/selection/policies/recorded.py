"""The policy of a locked run: it takes what is recorded, and never tries anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from bestof.selection.policies.argument import check_names

UNRECORDED = "not in the lock"
"""The source of a decision for the first alternative, because nothing is recorded."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Decides for the first of the `wanted` alternatives that remains, without a trial.

    `wanted` holds pairs (alternative, source of the decision). If none of them remains, it decides
    for the first alternative that does. The source is then UNRECORDED.
    """

    wanted: tuple[tuple[str, str], ...]
    at_any_time: ClassVar[bool] = False

    def start(self, alternatives: Sequence[str]) -> RecordedSearch:
        """Return a search that is already over."""
        check_names("Recorded", alternatives)
        names = list(alternatives)
        wanted = [(names.index(name), source) for name, source in self.wanted if name in names]
        return RecordedSearch([*wanted, *((place, UNRECORDED) for place in range(len(names)))])


class RecordedSearch:
    """The search of `Recorded`. It is over from the start."""

    __slots__ = ("_wanted",)

    cut_off = True  # no sample decides, whatever was told

    def __init__(self, wanted: list[tuple[int, str]]) -> None:
        self._wanted = wanted

    def ask(self) -> int | None:
        return None

    def tell(self, position: int, seconds: float) -> None:
        """Ignore the time."""

    def drop(self, position: int) -> None:
        """Take an alternative out. The next one is decided for."""
        self._wanted = [one for one in self._wanted if one[0] != position]

    @property
    def winner(self) -> int | None:
        """The first wanted alternative that remains; None if every alternative was dropped."""
        return self._wanted[0][0] if self._wanted else None

    @property
    def best(self) -> int | None:
        """The winner."""
        return self.winner

    @property
    def source(self) -> str:
        """Where the decision comes from."""
        return self._wanted[0][1] if self._wanted else UNRECORDED
