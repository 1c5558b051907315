"""`bestof bench transpose`: how fast layouts change, compared with a copy and NumPy."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from bestof.bench.transpose import REACH_OF_COPY, REACH_OF_NUMPY, measure_transpose
from bestof.cli.options import add_json, add_number, parser_of, seconds
from bestof.progress import under_way
from bestof.view.bench.table import print_tables
from bestof.view.bench.transpose import transpose_table

_EPILOG = f"""\
GB/s: bytes read plus written; of copy: the speed over that of a copy of as many bytes by as many
threads; of NumPy: how many times faster than numpy.transpose into an array.
Promised for the best algorithm: {REACH_OF_COPY:g} and {REACH_OF_NUMPY:g}.
OMP_NUM_THREADS sets the number of threads.

  bestof bench transpose --batch 1"""


def call(argv: Sequence[str]) -> int:
    """Parse, measure and print."""
    options = make_parser().parse_args(argv)
    with under_way("measures transpositions"):
        rows = measure_transpose(options.batch, rounds=options.rounds, seconds=options.seconds)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print_tables([transpose_table(rows)])
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of(
        "bench transpose",
        description="Measure the transposition of VGG16's activations, NCHW to NHWC and back.",
        epilog=_EPILOG,
    )
    add_number(parser, "--batch", 8, "images")
    add_number(parser, "--rounds", 9, "rounds")
    add_number(parser, "--seconds", 0.02, "of each algorithm in a round", seconds)
    add_json(parser)
    return parser
