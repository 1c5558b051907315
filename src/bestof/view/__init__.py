"""Tables, trees and pages of reports: everything here reads plain values, and computes nothing.

Text is drawn by rich where it is installed (`pip install bestof[view]`), and plainly where it is not. It is imported
when the first text is drawn: 60 ms that the programs under `bestof run` do not pay.
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
from bestof.view.quantity import age, plural

_HINT = "(install bestof[view] for tables and colours)"


def render(
    report: Report,
    format: Literal["text", "json", "html"] = "text",
    width: int | None = None,
    color: bool = False,
) -> str:
    """The report as text, JSON or an HTML page; `width` in columns and `color` are for text alone.

    The JSON is that of `Report.to_dict`, which `report_from_dict` reads back.
    """
    if format == "json":
        return json.dumps(report.to_dict(), indent=2, ensure_ascii=False)
    if format == "html":
        return html(report)
    if format != "text":
        raise InvalidArgument(f"there is no format {format!r}; take text, json or html")
    if not _rich():
        return f"{report}\n{_HINT}"
    from bestof.view.text import text  # noqa: PLC0415  rich is optional, and slow to import

    return text(report, width, color)


def report(format: Literal["text", "json", "html"] = "text") -> str:
    """What is known of every selector of the process: tables and the tree of decisions, JSON, or an HTML page."""
    return render(report_all(), format)


def print_report(report: Report) -> None:
    """Print the report to the standard output, in colour and full width where that is a terminal."""
    if _rich() and sys.stdout.isatty():
        from bestof.view.text import print_text, terminal  # noqa: PLC0415  rich is optional, and slow to import

        print_text(report, terminal())
    else:
        print(render(report))


def print_chosen(report: Report) -> None:
    """Print the tree of decisions to the standard output: what was chosen, its time, and its speed-up over the first
    alternative, for all problems of the selectors that nest; without rich, the whole report."""
    if _rich():
        from bestof.view.text import print_chosen, terminal  # noqa: PLC0415  rich is optional, and slow to import

        print_chosen(report, terminal())
    else:
        print(render(report))


def print_records(records: Sequence[Record], url: str, now: float) -> None:
    """Print what the store of this URL holds to the standard output; `now` is seconds since the epoch."""
    if _rich():
        from bestof.view.text import print_records, terminal  # noqa: PLC0415  rich is optional, and slow to import

        print_records(records, url, now, terminal())
        return
    print(f"{url}: {plural(len(records), 'problem')}")
    for one in records:
        samples = sum(len(evidence.samples) for evidence in one.evidence)
        decision = one.decision or "unsettled"
        print(
            f"{one.selector}  {one.problem}  {decision}  {plural(samples, 'sample')}  {age(now - one.updated)}"
        )
    print(_HINT)


def _rich() -> bool:
    return find_spec("rich") is not None
