"""Compares two profiles by step or by sample: what became slower, and what only one of them has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bestof.errors import InvalidArgument
from bestof.profile.breakdown import FIELDS
from bestof.profile.span import Span
from bestof.profile.steady import Steady


@dataclass(frozen=True, slots=True)
class Pair:
    """One row of a comparison, in seconds of a step or of a sample. `calls` are those of a step.

    If one profile does not have the row, its calls and seconds are 0.
    """

    keys: tuple[str, ...]
    calls: tuple[int, int]
    seconds: tuple[float, float]

    @property
    def difference(self) -> float:
        """How much longer the second profile takes."""
        return self.seconds[1] - self.seconds[0]

    @property
    def only(self) -> str:
        """`A` or `B` if only this profile has the row, else empty."""
        return "" if all(self.calls) else "A" if self.calls[0] else "B"


def scale_of(steady: Steady, per: str) -> float:
    """Return the factor for a step's seconds.

    Raises InvalidArgument for samples if the samples of a step are unknown.
    """
    if per == "step":
        return 1.0
    if per != "sample":
        raise InvalidArgument(f"profiles are compared by step or by sample; got {per!r}")
    if not steady.samples:
        raise InvalidArgument(
            "the profiles cannot be compared by sample: one lacks the batch of a step; "
            "compare by step"
        )
    return 1.0 / steady.samples


def compare(first: Steady, second: Steady, by: Sequence[str], per: str = "step") -> list[Pair]:
    """Return the rows, the greatest difference first."""
    sides = [_groups(one, by) for one in (first, second)]
    scales = [scale_of(one, per) for one in (first, second)]
    pairs = []
    for keys in dict.fromkeys((*sides[0], *sides[1])):
        spans = [side.get(keys, []) for side in sides]
        pairs.append(
            Pair(
                keys=keys,
                calls=(len(spans[0]), len(spans[1])),
                seconds=(_seconds(spans[0]) * scales[0], _seconds(spans[1]) * scales[1]),
            )
        )
    return sorted(pairs, key=lambda pair: -abs(pair.difference))


def _groups(steady: Steady, by: Sequence[str]) -> dict[tuple[str, ...], list[Span]]:
    groups: dict[tuple[str, ...], list[Span]] = {}
    for span in steady.all_spans:
        groups.setdefault(tuple(FIELDS[name](span) for name in by), []).append(span)
    return groups


def _seconds(spans: Sequence[Span]) -> float:
    return sum(span.self_seconds for span in spans)
