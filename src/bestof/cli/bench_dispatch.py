"""`bestof bench dispatch`: what it costs to have a function selected, settled or on trial."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import TypeAlias

from bestof.bench.dispatch import THREADS, DispatchTime, measure
from bestof.errors import BestofError

_Cells: TypeAlias = tuple[str, ...]
_HEADINGS: _Cells = ("", "ns", "spread", f"{THREADS} threads", "reach")
_TORCH_HEADINGS = (
    "",
    "PyTorch us",
    "a Python pass",
    "in Python",
    "reach",
    "enabled",
    "spread",
    "reach",
)
_EPILOG = f"""\
ns: the median nanoseconds a call; spread: half the distance between the quartiles;
{THREADS} threads: elapsed nanoseconds over the calls of all of them; reach: what the ns are
not to exceed. The direct call is problem function, alternative and loop; all others are
what comes on top of these, and of the policy.

--torch: a convolution of 8 x 8 pixels, in microseconds: PyTorch's own, and what each
call takes beyond it where it goes through a Python function that only calls PyTorch's
kernel, and where bestof is enabled and has settled on PyTorch as is: without its
compiled side, and with it."""


def call(argv: Sequence[str]) -> int:
    """Parse, measure, print."""
    options = _parser().parse_args(argv)
    if options.torch:
        return _torch(options)
    rows = measure(options.repeats, options.calls)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        _print(_HEADINGS, [_cells(row) for row in rows])
    return 0


def _torch(options: argparse.Namespace) -> int:
    if find_spec("torch") is None:
        raise BestofError(
            "bench dispatch --torch needs PyTorch, which is not installed; "
            "pip install 'bestof[torch]'"
        )
    from bestof.bench import torch_dispatch  # noqa: PLC0415  torch is optional, and slow to import

    rows = torch_dispatch.measure(options.repeats, options.calls)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return 0
    cells = [
        (
            row.name,
            *(f"{seconds * 1e6:.1f}" for seconds in (row.pytorch, row.passed, row.in_python)),
            f"{torch_dispatch.REACH_IN_PYTHON * 1e6:.0f}",
            f"{row.enabled * 1e6:.1f}",
            f"± {row.spread * 1e6:.1f}",
            f"{torch_dispatch.REACH * 1e6:.0f}",
        )
        for row in rows
    ]
    _print(_TORCH_HEADINGS, cells)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bestof bench dispatch",
        description="Measure what it costs to have a function selected, beside other ways to choose one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--repeats", type=int, default=25, metavar="N", help="how often (default: %(default)s)"
    )
    parser.add_argument(
        "--calls",
        type=int,
        default=8000,
        metavar="N",
        help="calls each time (default: %(default)s)",
    )
    parser.add_argument(
        "--torch", action="store_true", help="what an enabled, settled convolution costs"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, times in seconds")
    return parser


def _cells(row: DispatchTime) -> _Cells:
    reach = "" if row.reach is None else f"{row.reach * 1e9:,.0f}"
    return (
        row.name,
        f"{row.seconds * 1e9:,.0f}",
        f"± {row.spread * 1e9:,.0f}",
        f"{row.threaded * 1e9:,.0f}",
        reach,
    )


def _print(headings: _Cells, rows: Sequence[_Cells]) -> None:
    if find_spec("rich") is not None:
        _print_table(headings, rows)
    else:
        print(_plain(headings, rows))


def _plain(headings: _Cells, rows: Sequence[_Cells]) -> str:
    lines = [headings, *rows]
    name, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join(
        f"{first:<{name}}  {'  '.join(f'{cell:>{width}}' for cell, width in zip(cells, widths, strict=True))}"
        for first, *cells in lines
    )


def _print_table(headings: _Cells, rows: Sequence[_Cells]) -> None:
    from rich.table import Table  # noqa: PLC0415  rich is optional, and slow to import

    from bestof.view.text import terminal  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="dim")
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="right" if position else "left")
    for row in rows:
        table.add_row(*row)
    terminal().print(table)
    sys.stdout.flush()
