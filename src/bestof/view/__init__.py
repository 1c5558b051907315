"""Tables, trees, pages and pictures, made from plain values. Nothing is measured here.

Text is drawn by rich if it is installed (`pip install 'bestof[view]'`), or plainly. rich is
imported when the first text is drawn, so that programs under `bestof run` do not pay its 60 ms.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Literal

from bestof.errors import InvalidArgument
from bestof.selection.record import Record
from bestof.selection.registry import report_all
from bestof.selection.report import Report
from bestof.view.html import html
from bestof.view.printable import printable_json, printable_record, printable_report
from bestof.view.quantity import age, plural

_HINT = "(install bestof[view] for tables and colours)"


def render(
    report: Report,
    format: Literal["text", "json", "html"] = "text",
    width: int | None = None,
    color: bool = False,
) -> str:
    """Return the report as text, JSON or an HTML page.

    `width` in columns and `color` apply to text only. `report_from_dict` reads the JSON back. Text
    shortens names of more than 400 characters; JSON and HTML hold them whole.
    """
    if format == "json":
        content = json.dumps(report.to_dict(), indent=2, ensure_ascii=False)
        return printable_json(content)
    if format == "html":
        return html(printable_report(report, most=None))
    if format != "text":
        raise InvalidArgument(f"there is no format {format!r}; take text, json or html")
    shown = printable_report(report)
    if not _rich():
        return f"{shown}\n{_HINT}"
    from bestof.view.text import text  # noqa: PLC0415  optional and slow

    return text(shown, width, color)


def report(format: Literal["text", "json", "html"] = "text") -> str:
    """Return what is known of every selector of the process, as text, JSON or HTML."""
    return render(report_all(), format)


def print_report(report: Report) -> None:
    """Print the report to the standard output. A terminal gets colours and full width."""
    if _rich() and sys.stdout.isatty():
        from bestof.view.text import print_text, terminal  # noqa: PLC0415  optional and slow

        print_text(printable_report(report), terminal())
    else:
        print(render(report))


def print_chosen(report: Report) -> None:
    """Print the tree of decisions to the standard output, for all selectors that nest.

    A line shows the chosen alternative, its time, and its speed-up over the first alternative.
    Without rich, the whole report is printed.
    """
    if _rich():
        from bestof.view.text import print_chosen, terminal  # noqa: PLC0415  optional and slow

        print_chosen(printable_report(report), terminal())
    else:
        print(render(report))


def print_records(records: Sequence[Record], url: str, now: float) -> None:
    """Print the content of the store at this URL. `now` is seconds since the epoch."""
    records = [printable_record(one) for one in records]
    if _rich():
        from bestof.view.text import print_records, terminal  # noqa: PLC0415  optional and slow

        print_records(records, url, now, terminal())
        return
    print(f"{url}: {plural(len(records), 'problem')}")
    for one in records:
        samples = sum(len(evidence.samples) for evidence in one.evidence)
        decision = one.decision or "unsettled"
        counted, old = plural(samples, "sample"), age(now - one.updated)
        print(f"{one.selector}  {one.problem}  {decision}  {counted}  {old}")
    print(_HINT)


def _rich() -> bool:
    return find_spec("rich") is not None
