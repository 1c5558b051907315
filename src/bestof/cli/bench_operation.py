"""`bestof bench operation`: every row of the operations of eager calls."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec

from bestof.accuracy import ACCURACIES, DEFAULT_ACCURACY
from bestof.cli.options import add_json, add_number, parser_of, seconds
from bestof.distribution import install
from bestof.errors import BestofError
from bestof.progress import under_way
from bestof.selection.identity.host import host
from bestof.view.bench.table import print_tables

_EPILOG = """\
Each operation has examples of its calls. Its rows are run in turn, PyTorch's own kernel
("as is") first; the first result of each is compared with that of PyTorch's own kernel.

ms: the median call, from Python. ratio: the time of PyTorch's own kernel over that of the
row, with half the distance between the quartiles. A star marks the fastest row.
OMP_NUM_THREADS sets the number of threads.

  bestof bench operation "average pooling" "max pooling\""""


def call(argv: Sequence[str]) -> int:
    """Parse, measure and print."""
    options = make_parser().parse_args(argv)
    if find_spec("torch") is None:
        raise BestofError(
            f"bench operation needs PyTorch, which is not installed; {install('torch')}"
        )
    with under_way("measures operations"):
        # torch is optional, and slow to import
        from bestof.bench.operation import measure_operations  # noqa: PLC0415
        from bestof.view.bench.operation import operation_table  # noqa: PLC0415

        rows = measure_operations(
            options.operation,
            rounds=options.rounds,
            seconds=options.seconds,
            level=options.accuracy,
        )
    if options.json:
        print(json.dumps({"host": host(), "times": [asdict(row) for row in rows]}, indent=2))
    else:
        threads = rows[0].threads if rows else 0
        print_tables([operation_table(f"{host()}, {threads} threads", rows)])
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of(
        "bench operation",
        description="Measure every row of the operations that `enable` chooses for.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "operation", nargs="*", metavar="OPERATION", help="its name in reports (default: all)"
    )
    parser.add_argument(
        "--accuracy",
        metavar="LEVEL",
        choices=ACCURACIES,
        default=DEFAULT_ACCURACY,
        help=f"of the rows that are run: {', '.join(ACCURACIES)} (default: %(default)s)",
    )
    add_number(parser, "--rounds", 9, "rounds")
    add_number(parser, "--seconds", 0.02, "of each row in a round", seconds)
    add_json(parser)
    return parser
