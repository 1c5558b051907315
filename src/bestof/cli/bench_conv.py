"""`bestof bench conv`: every alternative of a 2-D convolution on this machine."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from bestof.bench.convolution.alternatives import measure_conv
from bestof.bench.convolution.pass_times import PassTimes
from bestof.cli import bench_conv_peers
from bestof.cli.options import add_json, add_number, add_passes, parser_of, passes_of
from bestof.progress import progress_bar
from bestof.torch.ops.convolution.direction import DIRECTIONS
from bestof.torch.ops.convolution.problem import parse_conv
from bestof.view.bench.alternatives import alternatives_table, winners_table
from bestof.view.bench.table import print_tables

_EPILOG = """\
CONVOLUTION is written as iCHANNELSxHEIGHTxWIDTH,kFILTERSxHEIGHTxWIDTH,bBATCH and,
where it differs, sSTRIDE, pPADDING, dDILATION, gGROUPS:

  bestof bench conv i3x64x64,k128x7x7,b64 i64x56x56,k64x3x3,b8,p1

ms: the median a call; spread: half the distance between the quartiles; ratio:
how many times faster than PyTorch's own kernel. A star marks the one to choose."""


def call(argv: Sequence[str]) -> int:
    """Parse, measure and print."""
    if "--peers" in argv:
        return bench_conv_peers.call(argv)
    options = make_parser().parse_args(argv)
    passes = DIRECTIONS if options.passes is None else passes_of(options.passes, DIRECTIONS)
    for notation in options.convolution:
        parse_conv(notation)  # check all before measuring the first
    passes = tuple(one for one in DIRECTIONS if one in passes)
    jobs = [(notation, one) for notation in options.convolution for one in passes]
    results: list[PassTimes] = []
    with progress_bar() as progress:
        for number, (notation, one) in enumerate(jobs):
            progress(f"{notation}: {one}", number, len(jobs))
            results += measure_conv(
                notation,
                (one,),
                repeats=options.repeats,
                channels_last=options.channels_last,
                threads=options.threads,
            )
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        tables = [alternatives_table(result) for result in results]
        print_tables([*tables, winners_table(results)] if len(options.convolution) > 1 else tables)
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of(
        "bench conv",
        description="Measure every alternative of 2-D convolutions, forward and both gradients.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="compare the native kernels with other libraries: see --peers --help",
    )
    parser.add_argument(
        "convolution", nargs="+", metavar="CONVOLUTION", help="such as i3x64x64,k128x7x7,b64,s2,p3"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="PyTorch's threads (default: PyTorch's own number)"
    )
    add_number(parser, "--repeats", 7, "timed calls")
    add_passes(parser)
    parser.add_argument(
        "--channels-last", action="store_true", help="input, weight and gradient in channels last"
    )
    add_json(parser)
    return parser
