"""`bestof bench dispatch`: what a call of a selector costs, settled and during trials."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec

from bestof.bench.dispatch import THREADS, measure
from bestof.cli.options import add_json, add_number, parser_of
from bestof.distribution import install
from bestof.errors import BestofError
from bestof.progress import under_way
from bestof.view.bench.dispatch import dispatch_table, torch_dispatch_table
from bestof.view.bench.table import print_tables

_EPILOG = f"""\
ns: the median nanoseconds a call; spread: half the distance between the quartiles;
{THREADS} threads: elapsed nanoseconds over the calls of all of them; reach: the promised
limit of the ns. The direct call is problem function, alternative and loop. The other rows
tell what a call takes beyond that, and beyond its policy.

--torch: microseconds of a convolution of 8 x 8 pixels, and of linear layers (rows x
inputs x outputs). First PyTorch without bestof; the other columns tell what a call takes
beyond that. "a Python pass": every call goes through a Python function that only calls
PyTorch's kernel. "enabled": bestof is enabled and has settled on PyTorch's own kernel.
"in Python": the same without the compiled side, which linear layers always have.

  bestof bench dispatch
  bestof bench dispatch --torch --json"""

_WHAT = "measures calls"


def call(argv: Sequence[str]) -> int:
    """Parse, measure and print."""
    options = make_parser().parse_args(argv)
    if options.torch:
        return _torch(options)
    with under_way(_WHAT):
        rows = measure(options.repeats, options.calls)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print_tables([dispatch_table(rows)])
    return 0


def _torch(options: argparse.Namespace) -> int:
    if find_spec("torch") is None:
        raise BestofError(
            f"bench dispatch --torch needs PyTorch, which is not installed; {install('torch')}"
        )
    with under_way(_WHAT):
        # torch is optional, and slow to import
        from bestof.bench import torch_dispatch  # noqa: PLC0415

        rows = torch_dispatch.measure(options.repeats, options.calls)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return 0
    print_tables([torch_dispatch_table(rows)])
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of(
        "bench dispatch",
        description="Measure what a call of a selector costs, and compare it with other ways to "
        "choose a function.",
        epilog=_EPILOG,
    )
    add_number(parser, "--repeats", 25, "how often")
    add_number(parser, "--calls", 8000, "calls each time")
    parser.add_argument(
        "--torch", action="store_true", help="what enabled, settled convolutions and products cost"
    )
    add_json(parser)
    return parser
