"""Measurements of a projection: the times of one way to compute a problem, and a file of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bestof.errors import ProfileError


@dataclass(frozen=True, slots=True)
class Measured:
    """The times of one way to compute a problem, in seconds per call."""

    kind: str  # same, onednn, implementation, bestof
    name: str
    hot: float
    cold: float | None

    def seconds(self, cold: bool) -> float:
        """Return the hot or the cold time. Without a cold time, return the hot one."""
        return self.cold if cold and self.cold is not None else self.hot

    def between(self, coldness: float) -> float:
        """Return the seconds of a call that is cold by this share."""
        return self.hot + coldness * (self.seconds(cold=True) - self.hot)


@dataclass(slots=True)
class Kept:
    """Measurements of earlier runs in a file, one per line. A run continues the file."""

    path: Path | None
    known: dict[str, list[Measured]] = field(default_factory=dict)

    @classmethod
    def at(cls, path: Path | None) -> Kept:
        """Read a file if it exists. Raises ProfileError if it holds something else."""
        kept = cls(path)
        if path is not None and path.exists():
            for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                try:
                    content = json.loads(text)
                    kept.known[content["key"]] = [Measured(**one) for one in content["measured"]]
                except (ValueError, KeyError, TypeError) as error:
                    raise ProfileError(
                        f"{str(path)!r} does not hold measurements in line {number} ({error}); "
                        "give another path"
                    ) from error
        return kept

    def add(self, key: str, measured: Sequence[Measured]) -> None:
        """Keep the measurements of a problem, and write them at once."""
        self.known[key] = list(measured)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                content = {"key": key, "measured": [asdict(one) for one in measured]}
                file.write(json.dumps(content) + "\n")
