"""Draw a projection: a stacked bar for the observed time, and one for each ceiling."""

from __future__ import annotations

from pathlib import Path

from bestof.profile.projection.problem import Problem
from bestof.profile.projection.projection import CEILINGS, Projection
from bestof.view.stacked_bars import Bar, draw_stacked_bars

_REST = "(not replayed)"


def draw_projection(title: str, machine: str, done: Projection, path: str) -> None:
    """Draw the observed time and each ceiling, hot and cold, stacked by primitive and direction.

    Each bar is a whole step: ceilings do not replay the same parts of it.
    """
    observed: dict[str, float] = {}
    for one in done.problems:
        if one.measured:
            observed[_name(one)] = observed.get(_name(one), 0.0) + one.seconds
    observed[_REST] = done.wall - done.replayed()
    bars = [Bar("observed", observed)]
    for ceiling, kinds in CEILINGS.items():
        for cold in (False, True):
            parts: dict[str, float] = {}
            for one, seconds in done.parts(ceiling):
                best = one.ceiling(kinds, cold)
                if best is not None and one.seconds:
                    alone = one.calls * best.seconds(cold) * seconds / one.seconds
                    least = min(seconds, alone)
                    parts[_name(one)] = parts.get(_name(one), 0.0) + least
            parts[_REST] = done.wall - done.replayed(ceiling)
            share = f"{done.share(ceiling):.0%} replayed"
            bars.append(Bar(f"{ceiling}, {'cold' if cold else 'hot'}, {share}", parts))
    text = f"{Path(title).name}: a step, and what a replay of its parts promises\n{machine}"
    draw_stacked_bars([bars], text, Path(path))


def _name(one: Problem) -> str:
    return f"{one.primitive} {one.direction.removesuffix('_training')}".strip()
