"""`bestof bench gemm`: native matrix products beside MKL, oneDNN and the BLAS of NumPy."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from bestof.bench.product.case import CASES, QUICK, parse_case
from bestof.bench.product.measure import measure
from bestof.cli.options import add_json, add_number, numbers_of, parser_of, seconds
from bestof.errors import InvalidArgument
from bestof.progress import under_way
from bestof.selection.identity.host import host
from bestof.view.bench.product import product_table
from bestof.view.bench.table import print_tables

_EPILOG = """\
A PRODUCT is rows x depth x columns, and how both operands lie: row by row (N) or column by column
(T). A linear layer is NT; the gradients of its input and weights are NN and TN. Without a PRODUCT:
layers of transformers, and few rows of large weights.

Each side has a process of its own, and all take turns. `packed`: b was packed beforehand, as
weights that do not change. oneDNN reorders its weights beforehand. A star marks our fastest run.

ms: the median a call. of peak: FLOP/s over those of multiply-adds in registers. ceiling: the least
time that multiply-adds and a copy allow, over the time. ratio: how many times longer the better one
of MKL and oneDNN took, with half the distance between the quartiles.

  bestof bench gemm 64x512x512,NT --threads 1"""


def call(argv: Sequence[str]) -> int:
    """Parse, measure, print."""
    options = make_parser().parse_args(argv)
    if options.rounds < 1:
        raise InvalidArgument(f"--rounds: expected at least 1; got {options.rounds}")
    if options.quick and options.product:
        raise InvalidArgument("take one of PRODUCT and --quick")
    cases = QUICK if options.quick else tuple(map(parse_case, options.product)) or CASES
    with under_way("measures products"):
        rows = measure(
            cases,
            numbers_of(options.threads, "--threads"),
            rounds=options.rounds,
            seconds=options.seconds,
            tell=lambda line: print(line, file=sys.stderr, flush=True),
        )
    if options.json:
        print(json.dumps({"host": host(), "times": [asdict(row) for row in rows]}, indent=2))
    else:
        print_tables([product_table(host(), rows)])
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of(
        "bench gemm",
        description="Measure matrix products beside MKL, oneDNN and the BLAS of NumPy.",
        epilog=_EPILOG,
    )
    parser.add_argument("product", nargs="*", metavar="PRODUCT", help="such as 1024x768x3072,NT")
    parser.add_argument(
        "--threads", default="1,2", metavar="LIST", help="threads (default: %(default)s)"
    )
    add_number(parser, "--rounds", 5, "rounds")
    add_number(parser, "--seconds", 0.05, "of each run in a round", seconds)
    parser.add_argument("--quick", action="store_true", help="two small products")
    add_json(parser)
    return parser
