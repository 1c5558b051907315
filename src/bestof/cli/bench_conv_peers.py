"""`bestof bench conv --peers`: the native convolutions beside oneDNN and ncnn."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from importlib.util import find_spec
from math import inf
from pathlib import Path

from bestof.bench.convolution.case import PASSES, Case
from bestof.bench.convolution.kept import keep, read_kept
from bestof.bench.convolution.layers import LAYERS, QUICK, parse_case
from bestof.bench.convolution.measure import Sides, measure
from bestof.bench.convolution.result import LayerTimes, Quartiles
from bestof.bench.convolution.rows import Reach, Row, reaches, rows_of
from bestof.errors import BenchError, InvalidArgument
from bestof.view.quantity import plural
from bestof.view.roofline import Point, Roof, draw_roofline

_HEADINGS = (
    *("", "layer", "algorithm", "ms", "spread", "GFLOP/s", "ceiling"),
    *("oneDNN", "reach", "oneDNN bf16", "ncnn", "scaling"),
)
_EPILOG = """\
Without a CONVOLUTION, the layers of VGG16 and ResNet that a table of ours is about. oneDNN runs through PyTorch with
weights packed beforehand, channels last, ReLU fused; ncnn in its packed layout; each side in a process of its own, all
in turn. A star marks the fastest native algorithm.

ms: the median a call; spread: half the distance between the quartiles; GFLOP/s: of the direct algorithm, so that
Winograd's may exceed the peak; ceiling: the least time that multiply-adds and a copy, measured in the same rounds,
allow the algorithm, over its time; oneDNN, ncnn: how many times longer they took, with the quartiles; scaling: one
thread's time over this one.

  bestof bench conv --peers --quick
  bestof bench conv --peers --layers vgg16 --batch 8 --keep table.jsonl --roofline roofline.png"""


def call(argv: Sequence[str]) -> int:
    """Parse, measure, print, draw."""
    options = _parser().parse_args(argv)
    cases = _cases(options)
    threads = _numbers(options.threads, "--threads")
    if options.roofline is not None and find_spec("matplotlib") is None:
        raise BenchError("--roofline: matplotlib is missing; pip install 'bestof[plot]'")
    results = read_kept(options.keep) if options.keep else []
    there = {result.key for result in results}
    wanted = [(case, [n for n in threads if (*_key(case), n) not in there]) for case in cases]
    results = [one for one in results if any(_asked(one, case, threads) for case in cases)]
    for result in _measure([case for case, missing in wanted if missing], threads, options):
        results.append(result)
        if options.keep:
            keep(options.keep, result)
    order = {_key(case): place for place, case in enumerate(cases)}
    results.sort(key=lambda one: (order[one.key[:-1]], one.threads))
    _print(results, options)
    if options.roofline is not None:
        _draw(results, options.roofline)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bestof bench conv --peers",
        description="Measure the native convolutions beside oneDNN and ncnn.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", action="store_true", help="what brought you here")
    parser.add_argument(
        "convolution", nargs="*", metavar="CONVOLUTION", help="such as i64x56x56,k64x3x3,p1"
    )
    parser.add_argument(
        "--layers",
        metavar="LIST",
        help=f"some of {','.join(one.name for one in LAYERS)} (default: all)",
    )
    parser.add_argument(
        "--batch", default="1,8", metavar="LIST", help="batches (default: %(default)s)"
    )
    parser.add_argument(
        "--threads", default="1,2", metavar="LIST", help="numbers of threads (default: %(default)s)"
    )
    parser.add_argument(
        "--passes",
        metavar="LIST",
        help="some of forward,input-gradient,weight-gradient (default: all)",
    )
    parser.add_argument(
        "--bfloat16",
        action="store_true",
        help="with what rounds to bfloat16, and oneDNN in it: forward only",
    )
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="rounds (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.03,
        metavar="S",
        help="of each run in a round (default: %(default)s)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="one small layer of each kind, forward"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help="keep each measurement; measure only what it lacks",
    )
    parser.add_argument(
        "--roofline", type=Path, metavar="FILE", help="draw a roofline picture (png, svg or pdf)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON, times in seconds")
    form.add_argument("--csv", action="store_true", help="print CSV")
    return parser


def _numbers(text: str, option: str) -> list[int]:
    try:
        numbers = [int(one) for one in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        raise InvalidArgument(f"{option}: expected positive numbers such as 1,2; got {text!r}")
    return numbers


def _cases(options: argparse.Namespace) -> list[Case]:
    """What is asked for, group by group, pass by pass, batch by batch."""
    if options.rounds < 1 or not 0 < options.seconds < inf:
        raise InvalidArgument("--rounds, --seconds: expected positive numbers")
    given = sum(map(bool, (options.convolution, options.layers, options.quick)))
    if given > 1:
        raise InvalidArgument("take one of CONVOLUTION, --layers and --quick")
    forward = options.quick or options.bfloat16
    passes = (
        options.passes.replace("-", " ").split(",")
        if options.passes
        else PASSES[:1]
        if forward
        else PASSES
    )
    for name in passes:
        if name not in PASSES:
            known = ", ".join(one.replace(" ", "-") for one in PASSES)
            raise InvalidArgument(
                f"--passes: there is no pass {name.replace(' ', '-')!r}; take some of {known}"
            )
    if options.bfloat16 and tuple(passes) != PASSES[:1]:
        raise InvalidArgument("--bfloat16: there is the forward pass alone")
    dtype = "bfloat16" if options.bfloat16 else "float32"
    groups = [
        tuple(replace(parse_case(text), dtype=dtype) for text in one) for one in _notations(options)
    ]
    batches = _numbers(options.batch, "--batch")
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
                f"--layers: there is no group {name!r}; take some of {', '.join(g.name for g in LAYERS)}"
            )
        yield group.notations


def _key(case: Case) -> tuple[str, str, int, str]:
    """The key of its measurements, but for the threads."""
    return case.notation, case.direction, case.batch, case.dtype


def _asked(result: LayerTimes, case: Case, threads: Sequence[int]) -> bool:
    return result.threads in threads and result.key[:-1] == _key(case)


def _measure(
    cases: Sequence[Case], threads: Sequence[int], options: argparse.Namespace
) -> Iterator[LayerTimes]:
    """One case after the other; what is going on is told on the standard error."""
    if not cases:
        return
    with ExitStack() as stack:
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
        reached = [{**asdict(one), "met": one.met} for one in reaches(results)]
        print(json.dumps({"results": [asdict(one) for one in results], "reach": reached}, indent=2))
    elif options.csv:
        _print_csv(rows)
    else:
        titles = dict.fromkeys((row.direction, row.batch, row.threads) for row in rows)
        for direction, batch, threads in titles:
            own = [
                row
                for row in rows
                if (row.direction, row.batch, row.threads) == (direction, batch, threads)
            ]
            _print_table(f"{direction}, batch {batch}, {plural(threads, 'thread')}", own)
        _print_reach(reaches(results))


def _print_csv(rows: Sequence[Row]) -> None:
    """Quartiles become three columns each."""
    names = [field.name for field in fields(Row)]
    wide = [name for name in names if name in ("onednn", "onednn_bf16", "ncnn")]
    columns = [
        column
        for name in names
        for column in ([name, f"{name}_low", f"{name}_high"] if name in wide else [name])
    ]
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {name: getattr(row, name) for name in names if name not in wide}
        for name in wide:
            value: Quartiles | None = getattr(row, name)
            if value is not None:
                cells |= {name: value.middle, f"{name}_low": value.low, f"{name}_high": value.high}
        writer.writerow(cells)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        "*" if row.best else "",
        row.layer,
        row.algorithm,
        f"{row.milliseconds:.3f}",
        f"± {row.spread:.3f}",
        f"{row.gflops:.0f}",
        "" if row.of_ceiling is None else f"{row.of_ceiling:.0%}",
        _ratio(row.onednn),
        "" if row.reach is None else f"{row.reach:.2f}",
        _ratio(row.onednn_bf16),
        _ratio(row.ncnn),
        "" if row.scaling is None else f"{row.scaling:.2f}",
    )


def _ratio(value: Quartiles | None) -> str:
    return "" if value is None else f"{value.middle:.2f} ({value.low:.2f} to {value.high:.2f})"


def _print_table(title: str, rows: Sequence[Row]) -> None:
    cells = [_HEADINGS, *map(_cells, rows)]
    if all(row.onednn_bf16 is None for row in rows):
        place = _HEADINGS.index("oneDNN bf16")
        cells = [line[:place] + line[place + 1 :] for line in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    print(title)
    for line in cells:
        left = [f"{cell:<{width}}" for cell, width in zip(line[:3], widths[:3], strict=True)]
        right = [f"{cell:>{width}}" for cell, width in zip(line[3:], widths[3:], strict=True)]
        print("  ".join([*left, *right]).rstrip())
    print()


def _print_reach(found: Sequence[Reach]) -> None:
    if not found:
        return
    width = max(len(one.what) for one in found)
    print("against what is to be reached")
    for one in found:
        middle = one.reached
        print(
            f"{one.what:<{width}}  {middle.middle:5.2f} ({middle.low:.2f} to {middle.high:.2f}) of {one.reach:.2f}"
            f"{'' if one.met else '  missed'}"
        )


def _draw(results: Sequence[LayerTimes], path: Path) -> None:
    """The forward passes with the most threads and the largest batch."""
    threads = max(one.threads for one in results)
    batch = max(one.batch for one in results)
    shown = [
        one
        for one in results
        if (one.direction, one.threads, one.batch) == (PASSES[0], threads, batch)
    ]
    if not shown:
        raise BenchError("--roofline: it shows the forward pass, which was not measured")
    points = []
    titles = {
        parse_case(notation).notation: group.title
        for group in LAYERS
        for notation in group.notations
    }
    for one in shown:
        intensity = one.flops / one.bytes
        panel = titles.get(one.notation, "layers that were asked for")
        fastest = {
            one.best.side: one.best,
            **{time.side: time for time in one.times if time.side != one.best.side},
        }
        for side, time in fastest.items():
            points.append(
                Point(panel, _SERIES[side], one.layer, intensity, one.flops / time.seconds.middle)
            )
    # The most that was ever measured: a ceiling that a slow minute lowers is none.
    roof = Roof(
        max(one.peak for one in shown),
        max(one.bandwidth for one in shown),
        (("Winograd F(4)", 4.0),),
    )
    title = f"Convolutions, forward, batch {batch}, {plural(threads, 'thread')}, {shown[0].dtype}"
    draw_roofline(points, roof, title, path)
    print(f"roofline: {path}", file=sys.stderr)


_SERIES = {
    "native": "bestof, the fastest algorithm",
    "onednn": "oneDNN",
    "onednn_bf16": "oneDNN in bfloat16",
    "ncnn": "ncnn",
}
