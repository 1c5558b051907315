"""A profile as one HTML page: where the time of a step goes, and how far from the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from bestof.cli.profile_tables import head_lines, key_cell
from bestof.profile import Profile
from bestof.profile.breakdown import Row, breakdown
from bestof.profile.steady import Steady, steady_of
from bestof.profile.suspect import suspects_of
from bestof.selection.duration import duration
from bestof.view.page_parts import controls, page
from bestof.view.quantity import plural

_ROW = ("phase", "module", "primitive", "direction")
_INSIDE = ("implementation", "problem")
_NUMBERS = ("calls", "time", "share", "GFLOP/s", "GB/s", "roofline")
_BARS = (
    ("phases", ("phase",)),
    ("primitives", ("primitive", "direction")),
    ("modules", ("module",)),
)
_STATES = (("far", "below half of the roofline"),)
_MOST = 10  # bars below one heading
_WIDTH = 120  # of the longest bar, in pixels
_FAR = 0.5  # of the roofline: slower rows are far from it


def profile_page(profile: Profile) -> str:
    """Return the page: sums, bars of the slowest parts, suspects, and a table of all calls."""
    return page(f"bestof profile: {profile.title}", _parts(profile, steady_of(profile)))


def _parts(profile: Profile, steady: Steady) -> Iterator[str]:
    first, *lines = head_lines(profile, steady)
    yield f'<p class="soft">{escape(first)}</p>'
    yield from _cards(profile, steady)
    for note in profile.notes:
        yield f'<p class="unsettled">{escape(note)}</p>'
    for title, by in _BARS:
        yield from _bars(title, by, breakdown(steady, by, profile.peak))
    suspects = suspects_of(profile)
    if suspects:
        yield "<h2>suspects</h2>\n<dl>"
        for one in suspects:
            yield f"<dt>{escape(one.name)}: {duration(one.seconds)} a step</dt>"
            yield f"<dd>{escape(one.reason)}. Try: {escape(one.remedy)}</dd>"
        yield "</dl>"
    rows = breakdown(steady, _ROW, profile.peak)
    yield f"<h2>{'all calls of a step' if steady.steps else 'all calls'}</h2>"
    yield from controls(
        "module, primitive", "phase", (row.keys[0] for row in rows), _STATES, len(rows)
    )
    yield from _table(rows, breakdown(steady, (*_ROW, *_INSIDE), profile.peak))
    yield '<details class="words"><summary>how it was measured</summary>\n<ul>'
    for line in lines:
        yield f"<li>{escape(line)}</li>"
    yield "</ul></details>"


def _cards(profile: Profile, steady: Steady) -> Iterator[str]:
    many = plural(steady.steps, "step") if steady.steps else "no step was seen"
    cards = [("a step" if steady.steps else "all calls", duration(steady.wall), many)]
    if steady.samples:
        each = duration(steady.wall / steady.samples)
        cards.append(("a sample", each, f"batch {steady.samples}"))
    if steady.coverage is not None:
        cards.append(("coverage", f"{steady.coverage:.1%}", "of the time is explained"))
    if profile.peak is not None:
        moved = f"and {profile.peak.bandwidth / 1e9:.1f} GB/s"
        cards.append(("the machine's peak", f"{profile.peak.flops / 1e9:.0f} GFLOP/s", moved))
    yield '<div class="cards">'
    for name, value, more in cards:
        yield f"<div><span>{escape(name)}</span><b>{value}</b><span>{more}</span></div>"
    yield "</div>"


def _bars(title: str, by: Sequence[str], rows: Sequence[Row]) -> Iterator[str]:
    longest = max((row.seconds for row in rows), default=0.0) or 1.0
    yield f'<h2>{title}</h2>\n<div class="scroll" tabindex="0" role="region" aria-label="{title}">'
    yield '<table class="bars"><tbody>'
    for row in rows[:_MOST]:
        name = " ".join(filter(None, map(key_cell, by, row.keys)))
        width = max(1.0, _WIDTH * row.seconds / longest)
        yield (
            f'<tr><td class="number">{duration(row.seconds)}</td><td class="number">{row.share:.1%}'
            f'</td><td><svg width="{_WIDTH}" height="12" aria-hidden="true"><rect height="12" '
            f'width="{width:.0f}"/></svg></td><th scope="row">{escape(name)}</th></tr>'
        )
    yield "</tbody></table></div>"
    if len(rows) > _MOST:
        yield f'<p class="soft">and {len(rows) - _MOST} more, which take less time</p>'


def _table(rows: Sequence[Row], inside: Sequence[Row]) -> Iterator[str]:
    problems: dict[tuple[str, ...], list[Row]] = {}
    for one in inside:
        problems.setdefault(one.keys[: len(_ROW)], []).append(one)
    yield '<div class="scroll" tabindex="0" role="region" aria-label="all calls">'
    yield '<table id="rows">\n<thead><tr>'
    for heading in ("module", *_NUMBERS, "what runs"):
        kind = ' class="number"' if heading in _NUMBERS else ""
        yield f'<th scope="col"{kind}><button type="button">{heading}</button></th>'
    yield "</tr></thead>\n<tbody>"
    for row in rows:
        phase, module, primitive, direction = row.keys
        state = "far" if row.roofline is not None and row.roofline < _FAR else ""
        yield f'<tr data-operation="{escape(phase)}" data-state="{state}">'
        yield f'<th scope="row" data-label="module">{escape(key_cell("module", module))}</th>'
        yield from _numbers(row)
        yield f'<td data-label="what runs"><details><summary>{escape(primitive)} '
        yield f"{escape(direction)}</summary>"
        yield from _problems(problems[row.keys])
        yield "</details></td></tr>"
    yield "</tbody></table></div>"


def _numbers(row: Row) -> Iterator[str]:
    numbers = (
        (row.calls, str(row.calls)),
        (row.seconds, duration(row.seconds)),
        (row.share, f"{row.share:.1%}"),
        (row.rate, "" if row.rate is None else f"{row.rate / 1e9:.1f}"),
        (row.bandwidth, "" if row.bandwidth is None else f"{row.bandwidth / 1e9:.1f}"),
        (row.roofline, "" if row.roofline is None else f"{row.roofline:.0%}"),
    )
    for label, (value, text) in zip(_NUMBERS, numbers, strict=True):
        yield f'<td class="number" data-label="{label}" data-value="{value or 0:.9g}">{text}</td>'


def _problems(rows: Sequence[Row]) -> Iterator[str]:
    yield '<table><thead><tr><th>implementation</th><th>problem</th><th class="number">calls</th>'
    yield '<th class="number">time</th></tr></thead><tbody>'
    for row in rows:
        implementation, problem = row.keys[len(_ROW) :]
        yield f"<tr><td>{escape(implementation)}</td><td>{escape(problem)}</td>"
        yield f'<td class="number">{row.calls}</td>'
        yield f'<td class="number">{duration(row.seconds)}</td></tr>'
    yield "</tbody></table>"
