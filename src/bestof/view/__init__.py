"""Tables, trees, pages and pictures, made from plain values. Nothing is measured here.

Text is drawn by rich if it is installed (`pip install 'bestof-select[view]'`), or plainly. rich is
imported when the first text is drawn, so that programs under `bestof run` do not pay its 60 ms.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Literal, TextIO

from bestof.distribution import install
from bestof.errors import InvalidArgument
from bestof.selection import report_all
from bestof.selection.reports.report import Report
from bestof.selection.store.record import Record
from bestof.view.overview import overview_text
from bestof.view.printable import printable_json, printable_record, printable_report
from bestof.view.quantity import age, plural
from bestof.view.report_page import html, html_part
from bestof.view.words import not_shown

_HINT = f"({install('view')} for tables and colours)"


def render(
    report: Report,
    format: Literal["text", "json", "html"] = "text",
    width: int | None = None,
    color: bool = False,
    most: int | None = None,
    *,
    whole: bool = False,
) -> str:
    """Return the report as text, JSON or an HTML page.

    Text is a table with a row for each layer or problem; if `whole`, tables of all alternatives and
    the tree of decisions. `width` in columns, `color` (if `whole`), and `most`, the number of
    problems shown, apply to text only. `report_from_dict` reads the JSON back. Text shortens names
    of more than 400 characters; JSON and HTML hold them whole.
    """
    if format == "json":
        content = json.dumps(report.to_dict(), indent=2, ensure_ascii=False)
        return printable_json(content)
    if format == "html":
        return html(printable_report(report, most=None))
    if format != "text":
        raise InvalidArgument(f"there is no format {format!r}; take text, json or html")
    if not whole:
        return overview_text(report, width, most)
    if not _rich():
        return _plain(report, most)
    from bestof.view.text import text  # noqa: PLC0415  optional and slow

    return text(report, width, color, most)


class ReportText(str):
    """A report as text, which notebooks show as a table."""

    report: Report

    def _repr_html_(self) -> str:
        return html_part(printable_report(self.report, most=None))


def report(format: Literal["text", "json", "html"] = "text") -> str:
    """Return what is known of every selector of the process, as text, JSON or HTML.

    The text has a row for each layer or problem. A notebook shows it as a table.
    """
    known = report_all()
    text = ReportText(render(known, format))
    text.report = known
    return text


def print_report(report: Report, most: int | None = None, *, whole: bool = False) -> None:
    """Print the report to the standard output, in lines that fit the terminal.

    most: the number of problems that are shown; None: all. whole: as for `render`.
    """
    if whole and _rich() and sys.stdout.isatty():
        from bestof.view.text import print_text, terminal  # noqa: PLC0415  optional and slow

        print_text(report, terminal(), most)
    else:
        print(render(report, width=terminal_width(sys.stdout), most=most, whole=whole))


def terminal_width(stream: TextIO | None) -> int:
    """Return how many columns a terminal has, or 100 for one that does not tell, and for files."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 100  # type: ignore[union-attr]
    except (OSError, ValueError, AttributeError):  # closed, redirected, or absent
        return 100


def print_chosen(report: Report, most: int | None = None) -> None:
    """Print the tree of decisions to the standard output, for all selectors that nest.

    A line shows the chosen alternative, its time, and its speed-up over the first alternative.
    Without rich, the whole report is printed. most: as for `print_report`, of trees.
    """
    if _rich():
        from bestof.view.text import print_chosen, terminal  # noqa: PLC0415  optional and slow

        print_chosen(report, terminal(), most)
    else:
        print(render(report, most=most, whole=True))


def print_records(records: Sequence[Record], url: str, now: float, most: int | None = None) -> None:
    """Print the content of the store at this URL. `now` is seconds since the epoch.

    most: the number of records that are shown; None: all.
    """
    title = f"{url}: {plural(len(records), 'problem')}"
    hidden = 0 if most is None else max(0, len(records) - most)
    shown = [printable_record(one) for one in records[:most]]
    if _rich():
        from bestof.view.text import print_records, terminal  # noqa: PLC0415  optional and slow

        print_records(shown, title, now, terminal())
    else:
        print(title)
        for one in shown:
            samples = sum(len(evidence.samples) for evidence in one.evidence)
            decision = one.decision or "unsettled"
            counted, old = plural(samples, "sample"), age(now - one.updated)
            print(f"{one.selector}  {one.problem}  {decision}  {counted}  {old}")
        print(_HINT)
    if hidden:
        print(f"{not_shown(plural(hidden, 'problem'))}; --selector NAME shows one selector")


def _plain(report: Report, most: int | None) -> str:
    """Return the report as text without rich."""
    used = sum(bool(one.problems) for one in report.selectors)
    share = None if most is None else max(1, most // max(1, used))
    cut = [replace(one, problems=one.problems[:share]) for one in report.selectors]
    counts = [len(one.problems) for one in report.selectors]
    hidden = sum(counts) - sum(len(one.problems) for one in cut)
    text = str(printable_report(replace(report, selectors=tuple(cut))))
    more = f"{not_shown(plural(hidden, 'problem'))}\n" if hidden else ""
    return f"{text}\n{more}{_HINT}"


def _rich() -> bool:
    return find_spec("rich") is not None
