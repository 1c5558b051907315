"""The course of a search, as a picture in SVG."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.selection.duration import duration
from bestof.selection.reports.report import Moment
from bestof.view.quantity import plural

_WIDTH, _HEIGHT = 900, 160  # of the lines, in units of the picture
_LEFT, _TOP = 10, 20


def time_line(course: Sequence[Moment]) -> str:
    """Return a figure: the share of all trials made, and of all decisions made, over time."""
    last = course[-1]
    trials, decisions = max(1, last.trials), max(1, last.decisions)
    end = last.at or 1.0
    told = (
        f"{plural(last.trials, 'trial')} and {plural(last.decisions, 'decision')} in "
        f"{duration(last.at)}; half of the decisions were made after {duration(_half(course))}"
    )
    lines = "".join(
        f'<path class="{name}" d="{_path(points)}"/>'
        for name, points in (
            ("trials", [(one.at / end, one.trials / trials) for one in course]),
            ("decisions", [(one.at / end, one.decisions / decisions) for one in course]),
        )
    )
    bottom = _TOP + _HEIGHT
    return (
        f'<figure><svg class="line" role="img" aria-label="{told}" '
        f'viewBox="0 0 {_WIDTH + 2 * _LEFT} {bottom + 22}">'
        f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_LEFT + _WIDTH}"/>{lines}'
        f'<text x="{_LEFT}" y="{bottom + 16}">0</text>'
        f'<text x="{_LEFT + _WIDTH}" y="{bottom + 16}" text-anchor="end">{duration(end)}</text>'
        f'<text x="{_LEFT}" y="12">share of all trials (dashed) and of all decisions made so far'
        f'</text></svg><figcaption class="soft">{told}</figcaption></figure>'
    )


def _half(course: Sequence[Moment]) -> float:
    half = course[-1].decisions / 2
    return next((one.at for one in course if one.decisions >= half), course[-1].at)


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Return a line from the origin through points whose coordinates are shares of 1."""
    moves = [f"M{_LEFT} {_TOP + _HEIGHT}"]
    for across, up in points:
        moves.append(f"L{_LEFT + across * _WIDTH:.1f} {_TOP + (1.0 - up) * _HEIGHT:.1f}")
    return "".join(moves)
