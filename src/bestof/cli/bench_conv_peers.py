"""`bestof bench conv --peers`: the native convolutions compared with oneDNN and ncnn."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.util import find_spec
from math import inf
from pathlib import Path

from bestof.bench.convolution.case import PASSES, Case
from bestof.bench.convolution.layers import LAYERS, QUICK, group_titles, parse_case
from bestof.bench.convolution.measure import Sides, measure
from bestof.bench.convolution.record import kept_in
from bestof.bench.convolution.result import LayerTimes
from bestof.bench.convolution.rows import reaches, rows_of
from bestof.cli.options import (
    add_json,
    add_number,
    add_passes,
    check_writable,
    numbers_of,
    parser_of,
    passes_of,
)
from bestof.distribution import install
from bestof.errors import BenchError, InvalidArgument
from bestof.progress import under_way
from bestof.view.bench.convolution_peers import draw_peers, peer_tables, write_rows
from bestof.view.bench.model_picture import check_format
from bestof.view.bench.reaches import print_reaches
from bestof.view.bench.table import print_tables

_EPILOG = """\
Without a CONVOLUTION: the layers of VGG16 and ResNet of docs/results/kernels.md. oneDNN runs
through PyTorch with weights packed beforehand, in channels last, with a fused ReLU; ncnn runs in
its packed layout. Each peer has a process of its own, and all take turns. A star marks the fastest
native algorithm.

ms: the median a call; spread: half the distance between the quartiles.
GFLOP/s: of the direct algorithm, so Winograd's may exceed the peak.
ceiling: the least time that multiply-adds and a copy, measured in the same rounds, allow the
algorithm, over its time.
oneDNN, ncnn: how many times longer they took, with the quartiles; reach: the promised ratio.
scaling: the time with one thread over this one.

  bestof bench conv --peers --quick
  bestof bench conv --peers --layers vgg16 --batch 8 --keep table.jsonl --roofline roofline.png"""


def call(argv: Sequence[str]) -> int:
    """Parse, measure, print and draw."""
    options = _parser().parse_args(argv)
    cases = _cases(options)
    threads = numbers_of(options.threads, "--threads")
    _check_files(options, cases)
    kept = kept_in(options.keep, options.rounds, options.seconds) if options.keep else None
    results = kept.read() if kept else []
    there = {result.key for result in results}
    wanted = [(case, [n for n in threads if (*_key(case), n) not in there]) for case in cases]
    results = [one for one in results if any(_asked(one, case, threads) for case in cases)]
    for result in _measure([case for case, missing in wanted if missing], threads, options):
        results.append(result)
        if kept:
            kept.add(result)
    order = {_key(case): place for place, case in enumerate(cases)}
    results.sort(key=lambda one: (order[one.key[:-1]], one.threads))
    _print(results, options)
    if options.roofline is not None:
        _draw(results, options.roofline)
    return 0


def _check_files(options: argparse.Namespace, cases: Sequence[Case]) -> None:
    """Raise an error for a file that cannot be written, before anything is measured."""
    if options.keep is not None:
        check_writable(str(options.keep), "measurements")
    if options.roofline is None:
        return
    if find_spec("matplotlib") is None:
        raise BenchError(f"--roofline: matplotlib is missing; {install('plot')}")
    if not any(case.direction == PASSES[0] for case in cases):
        raise InvalidArgument("--roofline shows the forward pass; add it to --passes")
    check_format(options.roofline)
    check_writable(str(options.roofline), "a roofline")


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "bench conv --peers",
        description="Measure the native convolutions beside oneDNN and ncnn.",
        epilog=_EPILOG,
    )
    parser.add_argument("--peers", action="store_true", help="beside other libraries")
    parser.add_argument(
        "convolution", nargs="*", metavar="CONVOLUTION", help="such as i64x56x56,k64x3x3,p1"
    )
    _add_problem(parser)
    _add_effort(parser)
    return parser


def _add_problem(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    groups = ",".join(one.name for one in LAYERS)
    add("--layers", metavar="LIST", help=f"some of {groups} (default: all)")
    add("--batch", default="1,8", metavar="LIST", help="batches (default: %(default)s)")
    add("--threads", default="1,2", metavar="LIST", help="threads (default: %(default)s)")
    add_passes(parser)
    add(
        "--bfloat16",
        action="store_true",
        help="also algorithms that round to bfloat16; forward only",
    )
    add("--quick", action="store_true", help="one small layer of each kind, forward")


def _add_effort(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_number(parser, "--rounds", 5, "rounds")
    add_number(parser, "--seconds", 0.03, "of each run in a round", float)
    add(
        "--keep",
        type=Path,
        metavar="FILE",
        help="keep each measurement; measure only what the file lacks, of equal effort",
    )
    add("--roofline", type=Path, metavar="FILE", help="draw a roofline picture (png, svg or pdf)")
    form = parser.add_mutually_exclusive_group()
    add_json(form)
    form.add_argument("--csv", action="store_true", help="print CSV")


def _cases(options: argparse.Namespace) -> list[Case]:
    """Return the cases that the options name, by group, then pass, then batch."""
    if options.rounds < 1 or not 0 < options.seconds < inf:
        raise InvalidArgument("--rounds, --seconds: expected positive numbers")
    given = sum(map(bool, (options.convolution, options.layers, options.quick)))
    if given > 1:
        raise InvalidArgument("take one of CONVOLUTION, --layers and --quick")
    forward = options.quick or options.bfloat16
    usual = PASSES[:1] if forward else PASSES
    passes = passes_of(options.passes, PASSES) if options.passes else usual
    if options.bfloat16 and passes != PASSES[:1]:
        raise InvalidArgument("--bfloat16: only the forward pass exists; pass --passes forward")
    dtype = "bfloat16" if options.bfloat16 else "float32"
    groups = [
        tuple(replace(parse_case(text), dtype=dtype) for text in one) for one in _notations(options)
    ]
    batches = numbers_of(options.batch, "--batch")
    return [
        case.of(name, batch)
        for group in groups
        for name in passes
        for batch in batches
        for case in group
    ]


def _notations(options: argparse.Namespace) -> Iterator[Sequence[str]]:
    if options.convolution or options.quick:
        yield options.convolution or QUICK
        return
    names = options.layers.split(",") if options.layers else [group.name for group in LAYERS]
    for name in names:
        group = next((one for one in LAYERS if one.name == name), None)
        if group is None:
            raise InvalidArgument(
                f"--layers: there is no group {name!r}; "
                f"take some of {', '.join(g.name for g in LAYERS)}"
            )
        yield group.notations


def _key(case: Case) -> tuple[str, str, int, str]:
    """Return the key of the case's results, without the threads."""
    return case.notation, case.direction, case.batch, case.dtype


def _asked(result: LayerTimes, case: Case, threads: Sequence[int]) -> bool:
    return result.threads in threads and result.key[:-1] == _key(case)


def _measure(
    cases: Sequence[Case], threads: Sequence[int], options: argparse.Namespace
) -> Iterator[LayerTimes]:
    """Yield the results of one case after the other. Print the progress to the standard error."""
    if not cases:
        return
    with ExitStack() as stack:
        with under_way("starts the libraries"):
            sides = Sides.start(threads, stack, cases[0].dtype)
        print(f"measuring {', '.join(sides.versions.values())}", file=sys.stderr)
        for name, reason in sides.missing.items():
            print(f"without {name}: {reason}", file=sys.stderr)
        for number, case in enumerate(cases, 1):
            print(
                f"{number}/{len(cases)} {case}, {case.direction}, batch {case.batch}",
                file=sys.stderr,
                flush=True,
            )
            for result in measure(
                case, str(case), sides, rounds=options.rounds, seconds=options.seconds
            ):
                for name in result.failed.keys() - sides.missing.keys():
                    print(f"  {name}: {result.failed[name]}", file=sys.stderr)
                yield result


def _print(results: Sequence[LayerTimes], options: argparse.Namespace) -> None:
    rows = rows_of(results)
    if options.json:
        found = {"results": [asdict(one) for one in results], "reach": _reaches(results)}
        print(json.dumps(found, indent=2))
    elif options.csv:
        write_rows(rows, sys.stdout)
    else:
        print_tables(peer_tables(rows))
        print_reaches(reaches(results))


def _reaches(results: Sequence[LayerTimes]) -> list[dict[str, object]]:
    return [
        {
            "what": one.what,
            "reach": one.reach,
            "reached": {"low": one.low, "middle": one.reached, "high": one.high},
            "met": one.met,
        }
        for one in reaches(results)
    ]


def _draw(results: Sequence[LayerTimes], path: Path) -> None:
    """Draw the forward passes with the most threads and the largest batch."""
    threads = max(one.threads for one in results)
    batch = max(one.batch for one in results)
    key = (PASSES[0], threads, batch)
    shown = [one for one in results if (one.direction, one.threads, one.batch) == key]
    draw_peers(shown, group_titles(), path)
    print(f"roofline: {path}", file=sys.stderr)
