"""Makes names and reasons safe to print. A name may contain anything, even control characters."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TypeVar
from zlib import crc32

from bestof.escaped import escaped
from bestof.selection.reports.report import AlternativeReport, ProblemReport, Report, SelectorReport
from bestof.selection.store.record import Record

# A longer text is shortened in tables. 400 characters are five lines of a terminal.
_MOST = 400

_Text = TypeVar("_Text", str, "str | None")


def printable(text: _Text, most: int | None = _MOST) -> _Text:
    r"""Return the text with each unprintable character written as its escape, such as \x1b.

    The middle of a text of more than `most` characters is replaced by a note with a checksum, so
    that long names which differ in the middle stay different. None stays None.
    """
    if text is None:
        return text
    shown = escaped(text)
    if most is None or len(shown) <= most:
        return shown
    middle = f" …({len(text):,} characters, crc {crc32(shown.encode()):08x})… "
    return shown[: most * 3 // 5] + middle + shown[-most // 4 :]


def printable_json(text: str) -> str:
    """Return the same JSON with unprintable characters escaped, except for line ends."""
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)


def printable_report(report: Report, most: int | None = _MOST) -> Report:
    """Return the report with every name and reason made printable."""
    run = report.run
    if run is not None:
        versions = tuple(printable(one, most) for one in run.versions)
        program, host = printable(run.program, most), printable(run.host, most)
        run = replace(run, program=program, host=host, versions=versions)
    selectors = tuple(printable_selector(one, most) for one in report.selectors)
    return replace(report, selectors=selectors, run=run)


def printable_record(record: Record) -> Record:
    """Return the record with the names that tables show made printable."""
    return replace(
        record,
        selector=printable(record.selector),
        problem=printable(record.problem),
        decision=printable(record.decision),
    )


def printable_selector(one: SelectorReport, most: int | None = _MOST) -> SelectorReport:
    """Return the report of one selector with every name and reason made printable."""
    problems = tuple(_problem(problem, most) for problem in one.problems)
    return replace(one, selector=printable(one.selector, most), problems=problems)


def _problem(one: ProblemReport, most: int | None) -> ProblemReport:
    return replace(
        one,
        problem=printable(one.problem, most),
        decision=printable(one.decision, most),
        source=printable(one.source, most),
        why=printable(one.why, most),
        history=tuple(
            replace(race, alternative=printable(race.alternative, most)) for race in one.history
        ),
        places=tuple(printable(place, most) for place in one.places),
        alternatives=tuple(_alternative(row, most) for row in one.alternatives),
    )


def _alternative(one: AlternativeReport, most: int | None) -> AlternativeReport:
    reason = None if one.reason is None else printable(" ".join(one.reason.split()), most)
    return replace(
        one,
        name=printable(one.name, most),
        reason=reason,
        children=tuple((printable(a, most), printable(b, most)) for a, b in one.children),
    )
