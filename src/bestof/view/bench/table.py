"""Tables of benchmarks, drawn by rich if it is installed, or plainly."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

# Below so many columns, one space stands between two columns of a table.
_NARROW = 80


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text. The first `left` columns are words, aligned left. The others are numbers.

    A row that begins with a star is the best one. A row that begins with an exclamation mark is a
    failure. A row without numbers may have a sentence in its first column of numbers; such rows are
    drawn last. `below` is a line behind all of them.
    """

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: int = 2
    below: str = ""

    def is_measured(self, row: tuple[str, ...]) -> bool:
        """Return whether the row has numbers instead of a sentence."""
        return any(row[self.left + 1 :])


def print_tables(tables: Sequence[Table]) -> None:
    """Print the tables to the standard output, an empty line between them."""
    if find_spec("rich") is None:
        print("\n\n".join("\n".join(_plain(table)) for table in tables))
    else:
        _print_drawn(tables)


def _print_drawn(tables: Sequence[Table]) -> None:
    from rich.table import Table as Drawn  # noqa: PLC0415  rich is optional, and slow to import
    from rich.text import Text  # noqa: PLC0415

    from bestof.view.text import terminal  # noqa: PLC0415

    console = terminal()
    for number, table in enumerate(tables):
        if number:
            console.print()
        if table.title:
            console.print(Text(table.title, style="bold"), soft_wrap=True)
        padding = (0, 1) if console.width >= _NARROW else (0, 1, 0, 0)
        drawn = Drawn(box=None, pad_edge=False, header_style="dim", padding=padding)
        for place, heading in enumerate(table.headings):
            justify: Literal["left", "right"] = "left" if place < table.left else "right"
            # On a narrow terminal, words are folded and numbers are not.
            measured = [len(row[place]) for row in table.rows if table.is_measured(row)]
            least = None if place < table.left else max(measured, default=1)
            drawn.add_column(heading, justify=justify, overflow="fold", min_width=least)
        # A sentence would widen its column of numbers, and fold the words of all rows.
        sentences = [row for row in table.rows if " " in row[table.left]]
        for row in table.rows:
            if row not in sentences:
                usual = "" if table.is_measured(row) else "dim"
                style = {"*": "bold green", "!": "bold red"}.get(row[0], usual)
                drawn.add_row(*map(Text, row), style=style)
        console.print(drawn)
        for row in sentences:
            console.print(Text("  ".join(filter(None, row)), style="dim"))
        if table.below:
            console.print(Text(table.below, style="dim"))
    sys.stdout.flush()


def _plain(table: Table) -> Iterator[str]:
    if table.title:
        yield table.title
    lines = [table.headings, *sorted(table.rows, key=lambda row: " " in row[table.left])]
    # A sentence in place of numbers may have any length. It does not widen its column.
    measured = [table.headings, *filter(table.is_measured, table.rows)]
    widths = [
        max(len(row[place]) for row in (lines if place < table.left else measured))
        for place in range(len(table.headings))
    ]
    for row in lines:
        cells = [
            f"{cell:<{width}}" if place < table.left else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
    if table.below:
        yield table.below
