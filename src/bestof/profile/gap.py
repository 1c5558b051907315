"""Finds gaps: parts of a step in which the main thread runs no line and no operation.

Python runs there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bestof.profile.profile import Profile


@dataclass(frozen=True, slots=True)
class Gap:
    """One gap.

    `before` and `after` name the operations around it. `phase` is the phase of the one after it.
    """

    step: int
    phase: str
    before: str
    after: str
    start: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The gaps of a phase: their number and seconds in a step, and the longest one."""

    phase: str
    count: float
    seconds: float
    longest: Gap


def gaps_of(profile: Profile) -> list[Gap]:
    """Return the gaps inside steps, in the order of time.

    If there are several steps, the first one is left out.
    """
    first = 1 if len(profile.steps) > 1 else 0
    found = []
    ended, before, step = 0.0, "", -1
    for span in profile.spans:
        if span.thread != profile.thread or span.step < first:
            continue
        if span.step != step:
            step, ended, before = (
                span.step,
                profile.steps[span.step].start,
                "the beginning of the step",
            )
        if span.start > ended:
            found.append(Gap(step, span.phase, before, span.name, ended, span.start - ended))
        if span.end > ended:
            ended, before = span.end, span.name
    return found


def fragmentation_of(gaps: Sequence[Gap]) -> list[Fragmentation]:
    """Return the gaps by phase, the phase with the most time first."""
    steps = len({gap.step for gap in gaps}) or 1
    phases: dict[str, list[Gap]] = {}
    for gap in gaps:
        phases.setdefault(gap.phase, []).append(gap)
    found = [
        Fragmentation(
            phase,
            len(own) / steps,
            sum(gap.seconds for gap in own) / steps,
            max(own, key=lambda gap: gap.seconds),
        )
        for phase, own in phases.items()
    ]
    return sorted(found, key=lambda one: -one.seconds)
