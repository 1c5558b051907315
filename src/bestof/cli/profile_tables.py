"""Print a profile: a summary first, then a breakdown by each requested field."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from bestof.cli.profile_suspects import suspect_lines
from bestof.profile import Profile
from bestof.profile.breakdown import Row, breakdown
from bestof.profile.gap import fragmentation_of, gaps_of
from bestof.profile.peak import Peak
from bestof.profile.steady import Steady, steady_of
from bestof.profile.suspect import suspects_of
from bestof.view.columns import columns
from bestof.view.quantity import plural

# Above this share of the processors, other processes have disturbed a measurement.
OTHERS = 0.1

DEFAULT_FIELDS = (
    ("phase",),
    ("module",),
    ("primitive",),
    ("primitive", "direction", "implementation"),
)

# A log tells neither phases nor modules.
LOG_FIELDS = (*DEFAULT_FIELDS[2:], ("problem",))

_HEADINGS = ("calls", "ms", "share", "GFLOP/s", "GB/s", "roofline")


def profile_lines(
    profile: Profile, fields: Sequence[Sequence[str]] = DEFAULT_FIELDS, rows: int = 15
) -> list[str]:
    """Return the lines of all tables, each with at most `rows` rows."""
    steady = steady_of(profile)
    lines = [*head_lines(profile, steady)]
    for by in fields:
        lines += ["", *_table(steady, breakdown(steady, by, profile.peak), by, rows)]
    lines += suspect_lines("suspects", suspects_of(profile))
    return [*lines, *_tail(profile)]


def profile_content(profile: Profile, fields: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the same content for JSON: times in seconds, rates in FLOP/s and bytes/s."""
    steady = steady_of(profile)
    return {
        "title": profile.title,
        "host": dict(profile.host),
        "peak": None if profile.peak is None else asdict(profile.peak),
        "seconds": steady.wall,
        "samples": steady.samples,
        "steps": steady.steps,
        "aligned": steady.aligned,
        "coverage": steady.coverage,
        "between": sum(span.self_seconds for span in steady.between),
        "lines": profile.lines,
        "unattributed": profile.unattributed,
        "unknown": profile.unknown,
        "gaps": [asdict(one) for one in fragmentation_of(gaps_of(profile))],
        "suspects": [asdict(one) for one in suspects_of(profile)],
        "breakdowns": [
            {
                "by": list(by),
                "rows": [
                    {**asdict(row), "keys": dict(zip(by, row.keys, strict=True))}
                    for row in breakdown(steady, by, profile.peak)
                ],
            }
            for by in fields
        ],
    }


def profile_csv(profile: Profile, fields: Sequence[Sequence[str]]) -> str:
    """Return all rows as CSV.

    The column `by` names the breakdown, and `key` joins the values of its fields with a slash.
    """
    steady = steady_of(profile)
    text = io.StringIO()
    names = [name for name in Row.__slots__ if name != "keys"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["by", "key", *names])
    for by in fields:
        for row in breakdown(steady, by, profile.peak):
            cells = ["" if (cell := getattr(row, name)) is None else cell for name in names]
            writer.writerow(["/".join(by), "/".join(row.keys), *cells])
    return text.getvalue()


def head_lines(profile: Profile, steady: Steady) -> Iterator[str]:
    """Yield the summary: the program, the time of a step, the coverage, and the peaks."""
    host = ", ".join(f"{name} {text}" for name, text in profile.host.items() if text)
    yield f"profile of {profile.title}" + (f" ({host})" if host else "")
    if steady.steps:
        yield f"{plural(steady.steps, 'step')}{_taken(steady)}"
    per = f"{steady.wall * 1e3:.2f} ms a step" if steady.steps else f"{steady.wall * 1e3:.2f} ms"
    if steady.samples:
        per += f", {steady.wall * 1e3 / steady.samples:.3f} ms a sample (batch {steady.samples})"
    yield per
    if steady.coverage is None:
        yield "coverage: unknown, as the lines have no timestamps (ONEDNN_VERBOSE_TIMESTAMP=1)"
    else:
        yield _coverage(steady, steady.coverage)
    yield from _gap_lines(profile, steady)
    yield _lines_of(profile)
    if profile.peak is not None:
        yield from peak_lines(profile.peak)


def _taken(steady: Steady) -> str:
    """Return what is taken of several steps. The first one never is."""
    if steady.aligned > 1:
        return f"; {steady.aligned} issued the same calls: the least time of each position is taken"
    if steady.steps < 3:
        return "; the second one is taken" if steady.steps == 2 else ""
    return "; no two after the first issued the same calls: the one of median time is taken"


def peak_lines(peak: Peak) -> Iterator[str]:
    """Yield the peaks, and a warning if other processes disturbed their measurement."""
    yield (
        f"peaks measured on this machine: {peak.flops / 1e9:.0f} GFLOP/s (float32), "
        f"{peak.bandwidth / 1e9:.1f} GB/s"
    )
    if peak.others > OTHERS:
        yield (
            f"warning: other processes took {peak.others:.0%} of the processors meanwhile: the "
            "machine's peaks are higher"
        )


def _coverage(steady: Steady, coverage: float) -> str:
    between = sum(span.self_seconds for span in steady.between)
    share = between / steady.wall if steady.wall > 0 else 0.0
    more = f", {share:.1%} by work between operations" if between else ""
    return (
        f"coverage: {coverage:.1%} of the wall time is explained: {coverage - share:.1%} by lines "
        f"and operations{more}"
    )


def _gap_lines(profile: Profile, steady: Steady) -> Iterator[str]:
    """Yield how the unexplained time is divided.

    One long gap needs another remedy than a thousand short ones.
    """
    found = fragmentation_of(gaps_of(profile))
    if found and steady.wall > 0:
        longest = max((one.longest for one in found), key=lambda gap: gap.seconds)
        parts = ", ".join(f"{one.phase} {one.count:.0f}" for one in found[:4])
        yield (
            f"gaps a step: {sum(one.count for one in found):.0f} ({parts}); the longest "
            f"{longest.seconds * 1e3:.3f} ms between {longest.before} and {longest.after}"
        )


def _lines_of(profile: Profile) -> str:
    inside = [one for one in profile.spans if one.kind == "line"]
    text = f"lines: {profile.lines} of oneDNN, MKL and bestof"
    if any(one.kind == "operation" for one in profile.spans):
        named = sum(bool(one.module or one.module_class) for one in inside)
        share = named / len(inside) if inside else 1.0
        text += f"; {share:.1%} attributed to a module, {profile.unattributed} to no operation"
    return text + (f"; {profile.unknown} not understood" if profile.unknown else "")


def _tail(profile: Profile) -> Iterator[str]:
    for title, texts in (
        ("lines that were not understood", profile.examples),
        ("implementations that oneDNN refused", tuple(dict.fromkeys(profile.refusals))),
        ("notes", profile.notes),
    ):
        if texts:
            yield ""
            yield f"{title}:"
            yield from (f"  {text}" for text in texts[:20])
            if len(texts) > 20:
                yield f"  and {len(texts) - 20} more"


def _table(steady: Steady, rows: Sequence[Row], by: Sequence[str], limit: int) -> Iterator[str]:
    cells = [
        (*(key_cell(name, key) for name, key in zip(by, row.keys, strict=True)), *_cells(row))
        for row in rows[:limit]
    ]
    rest = rows[limit:]
    if rest:
        seconds = sum(row.seconds for row in rest)
        title = f"{len(rest)} more"
        blank = [""] * (len(by) - 1)
        share = seconds / steady.wall if steady.wall else 0.0
        calls = sum(row.calls for row in rest)
        cells.append(
            (title, *blank, f"{calls}", f"{seconds * 1e3:.2f}", f"{share:.1%}", "", "", "")
        )
    if by == ("phase",) and steady.coverage is not None:
        gap = steady.wall * (1 - steady.coverage)
        cells.append(
            ("(unexplained)", "", f"{gap * 1e3:.2f}", f"{1 - steady.coverage:.1%}", "", "", "")
        )
    yield from columns((*by, *_HEADINGS), cells, left=len(by))


def key_cell(field: str, text: str, most: int = 70) -> str:
    """Return the text of a field of a breakdown for a table, with at most `most` characters."""
    if not text and field == "module":
        return "(outside of modules)"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.calls),
        f"{row.seconds * 1e3:.2f}",
        f"{row.share:.1%}",
        "" if row.rate is None else f"{row.rate / 1e9:.1f}",
        "" if row.bandwidth is None else f"{row.bandwidth / 1e9:.1f}",
        "" if row.roofline is None else f"{row.roofline:.0%}",
    )
