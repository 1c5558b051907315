"""Measurements of a projection: the times of one way to compute a problem, and a file of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bestof.bench.kept import Kept as Lines
from bestof.bench.kept import circumstances
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
    """Measurements of earlier runs in a file, one per line. A run continues the file.

    Those of another machine, of another PyTorch or of other kernels are not used.
    """

    path: Path | None
    known: dict[str, list[Measured]] = field(default_factory=dict)

    @classmethod
    def at(cls, path: Path | None) -> Kept:
        """Read a file if it exists. Raises ProfileError if it holds something else."""
        return cls(path, {} if path is None else dict(_file(path).read()))

    def add(self, key: str, measured: Sequence[Measured]) -> None:
        """Keep the measurements of a problem, and write them at once."""
        self.known[key] = list(measured)
        if self.path is not None:
            _file(self.path).add((key, list(measured)))


_Row = tuple[str, list[Measured]]


def _file(path: Path) -> Lines[_Row]:
    return Lines(path, _to_json, _from_json, '{"key": ', circumstances(), refusal=ProfileError)


def _to_json(row: _Row) -> dict[str, Any]:
    return {"key": row[0], "measured": [asdict(one) for one in row[1]]}


def _from_json(content: Any) -> _Row:
    return content["key"], [Measured(**one) for one in content["measured"]]
