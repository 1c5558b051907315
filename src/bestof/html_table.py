"""Tables in HTML, by which notebooks show values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from bestof.escaped import escaped

_STYLE = "text-align:left;vertical-align:top;padding:.1em .7em;font-variant-numeric:tabular-nums"


def html_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    strong: Iterable[int] = (),
    notes: Iterable[str] = (),
) -> str:
    """Return a table below a title, with notes below the table; all texts are escaped.

    strong: the numbers of the rows that are set in bold.
    """
    bold = set(strong)
    head = "".join(f'<th scope="col" style="{_STYLE}">{_escape(one)}</th>' for one in headings)
    body = "".join(
        f"<tr>{''.join(_cell(cell, number in bold) for cell in row)}</tr>"
        for number, row in enumerate(rows)
    )
    below = "".join(f"<div>{_escape(note)}</div>" for note in notes)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div><b>{_escape(title)}</b>{table}{below}</div>"


def _escape(text: str) -> str:
    """Return the text for HTML, with each unprintable character as its escape."""
    return escape(escaped(text))


def _cell(text: str, bold: bool) -> str:
    shown = f"<b>{_escape(text)}</b>" if bold else _escape(text)
    return f'<td style="{_STYLE}">{shown}</td>'
