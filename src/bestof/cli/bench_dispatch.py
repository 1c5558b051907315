"""`bestof bench dispatch`: what it costs to have a function selected, settled or on trial."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec

from bestof.bench.dispatch import THREADS, DispatchTime, measure

_HEADINGS = ("", "ns", "spread", f"{THREADS} threads", "reach")
_EPILOG = f"""\
ns: the median nanoseconds a call; spread: half the distance between the quartiles;
{THREADS} threads: elapsed nanoseconds over the calls of all of them; reach: what the ns are
not to exceed. The direct call is problem function, alternative and loop; all others are
what comes on top of these, and of the policy."""


def call(argv: Sequence[str]) -> int:
    """Parse, measure, print."""
    options = _parser().parse_args(argv)
    rows = measure(options.repeats, options.calls)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    elif find_spec("rich") is not None:
        _print_table(rows)
    else:
        print(_plain(rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bestof bench dispatch",
        description="Measure what it costs to have a function selected, beside other ways to choose one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--repeats", type=int, default=25, metavar="N", help="how often (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=8000, metavar="N", help="calls each time (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON, times in seconds")
    return parser


def _cells(row: DispatchTime) -> tuple[str, ...]:
    reach = "" if row.reach is None else f"{row.reach * 1e9:,.0f}"
    return row.name, f"{row.seconds * 1e9:,.0f}", f"± {row.spread * 1e9:,.0f}", f"{row.threaded * 1e9:,.0f}", reach


def _plain(rows: Sequence[DispatchTime]) -> str:
    lines = [_HEADINGS, *(_cells(row) for row in rows)]
    name, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join(
        f"{first:<{name}}  {'  '.join(f'{cell:>{width}}' for cell, width in zip(cells, widths, strict=True))}"
        for first, *cells in lines
    )


def _print_table(rows: Sequence[DispatchTime]) -> None:
    from rich.table import Table  # noqa: PLC0415  rich is optional, and slow to import

    from bestof.view.text import terminal  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="dim")
    for position, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="right" if position else "left")
    for row in rows:
        table.add_row(*_cells(row))
    terminal().print(table)
    sys.stdout.flush()
