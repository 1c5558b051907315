"""Finds the work between operations: Python, autograd's engine, and the recording itself.

A gap between two operations is work or waiting. Between two readings of the thread's clocks, the
thread waited for the wall time less its processor time. All of this waiting is subtracted from the
gaps, although it may belong to operations. So idle time never counts as explained, and the result
is a lower bound.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bestof.profile.profile import Step
from bestof.profile.span import Span
from bestof.profile.timeline.attribution import NO_MODULE, Module
from bestof.profile.timeline.operation import Operation

# What these spans are called in breakdowns.
BETWEEN = "between operations"

# Begin and end in nanoseconds since the epoch, and the phases of the operations around.
_Piece = tuple[int, int, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Reading:
    """Both clocks of a thread in nanoseconds: since the epoch, and on processors.

    `module` is the innermost module that runs until the next reading.
    """

    wall: int
    processor: int
    module: Module = NO_MODULE


def spans_between(
    operations: Sequence[Operation],
    phases: Mapping[Operation, str],
    readings: Sequence[Reading],
    steps: Sequence[Step],
    began: int,
) -> Iterator[Span]:
    """Yield a span for each phase between two readings in each step.

    The operations are those of one thread, in the order of their beginnings, and the readings are
    its own.
    """
    bounds = [began + round(1e9 * time) for one in steps for time in (one.start, one.end)]
    walls = [one.wall for one in readings]
    found: dict[tuple[int, int, str], list[_Piece]] = {}
    for piece in _cut(_gaps(operations, phases, walls), sorted({*walls, *bounds})):
        segment = bisect_right(walls, piece[0]) - 1
        place = bisect_right(bounds, piece[0]) - 1
        if 0 <= segment < len(readings) - 1:
            # Bounds alternate between the beginning and the end of a step.
            step = place // 2 if place >= 0 and place % 2 == 0 else -1
            phase = _phase(piece[2], readings[segment].module)
            found.setdefault((segment, step, phase), []).append(piece)
    gaps = [0] * len(readings)
    for (segment, _, _), pieces in found.items():
        gaps[segment] += sum(end - begin for begin, end, _ in pieces)
    for (segment, step, phase), pieces in found.items():
        seconds = sum(end - begin for begin, end, _ in pieces) / 1e9
        seconds *= _worked(readings[segment], readings[segment + 1], gaps[segment])
        yield _span(pieces[0][0] - began, seconds, step, phase, readings[segment])


def _phase(around: tuple[str, str], module: Module) -> str:
    """Return the phase of the operation after a gap. Modules run in the forward phase to their
    end."""
    return "forward" if module != NO_MODULE and "forward" in around else around[1]


def _worked(first: Reading, second: Reading, gap: int) -> float:
    """Return the share of the gaps between two readings in which the thread surely ran."""
    waited = second.wall - first.wall - (second.processor - first.processor)
    return max(0.0, 1.0 - max(0, waited) / gap)


def _gaps(
    operations: Sequence[Operation], phases: Mapping[Operation, str], walls: Sequence[int]
) -> Iterator[_Piece]:
    """Yield the parts of the time line before each operation that no operation covers."""
    ended = walls[0] if walls else 0
    before = ""
    for one in operations:
        if not one.annotation:
            if one.start > ended:
                yield ended, one.start, (before, phases[one])
            ended, before = max(ended, one.end), phases[one]


def _cut(pieces: Iterator[_Piece], places: Sequence[int]) -> Iterator[_Piece]:
    for begin, end, around in pieces:
        inner = places[bisect_right(places, begin) : bisect_right(places, end - 1)]
        edges = [begin, *inner, end]
        for left, right in pairwise(edges):
            yield left, right, around


def _span(start: int, seconds: float, step: int, phase: str, reading: Reading) -> Span:
    return Span(
        kind="between",
        source="between",
        name=BETWEEN,
        start=start / 1e9,
        seconds=seconds,
        self_seconds=seconds,
        step=step,
        phase=phase,
        module=reading.module[0],
        module_class=reading.module[1],
        operation=BETWEEN,
    )
