"""`bestof bench model`: how fast whole models run, by ourselves and by every peer."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bestof.bench.model.device import check_device
from bestof.bench.model.job import Job
from bestof.bench.model.matrix import measure_matrix
from bestof.bench.model.measure import Effort, Progress, measure_model, silent
from bestof.bench.model.models import MODELS, find_model
from bestof.bench.model.peers.table import PEERS, Peer, find_peers
from bestof.bench.model.promises import promised_jobs, reaches
from bestof.bench.model.record import (
    keep,
    merged,
    read_kept,
    read_kept_rows,
    times_from_dict,
    to_dict,
    write_csv,
)
from bestof.bench.model.result import PROMISE, MatrixRow, ModelTimes, PeerTime
from bestof.cli.bench_model_layers import HEADINGS as LAYER_HEADINGS
from bestof.cli.bench_model_layers import layer_rows
from bestof.cli.reach import print_reaches
from bestof.cli.seconds import seconds
from bestof.errors import BestofError, InvalidArgument
from bestof.view.model_picture import check_format, draw
from bestof.view.quantity import ratio

_Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
_WORDS = {"peer", "model", "by", "layer", "pass"}
_HEADINGS = ("", "peer", "ms", "spread", "ratio", "quartiles", "error", "MB")
_MATRIX_HEADINGS = ("", "model", "by", "ms", "as is", "ratio", "quartiles", "error")
# Who is measured where nobody asks for all peers: PyTorch as it is, and ours.
_FEW = tuple(peer.name for peer in PEERS if peer.ours or peer.name.startswith("eager"))
_EPILOG = f"""\
models: {", ".join(model.name for model in MODELS)}
peers:  {", ".join(peer.name for peer in PEERS)}

Every peer runs in its own process, in turn with the others, and its results are
compared with PyTorch's. ms: the median a call; spread: half the distance between
the quartiles; ratio: how many times faster than the best peer that is not ours,
the median over the rounds, and its quartiles; error: the largest difference from
PyTorch as it is, in units of the root mean square; MB: of its process at the peak of
a call, PyTorch's own included, without what only preparing took. A star marks the
fastest.

  bestof bench model vgg16 resnet50 --peers --batch 1,8 --threads 1,2
  bestof bench model vgg16-cifar --train --batch 64 --steps 60 --png training.png
  bestof bench model --reach --keep models.jsonl --png models.png
  bestof bench model --matrix --batch 8 --size 64 --keep matrix.jsonl
  bestof bench model resnet50 --batch 32 --train --device cuda
  bestof bench model --read first.json second.json --png both.png"""


def call(argv: Sequence[str]) -> int:
    """Parse, measure, print; 1 where PyTorch itself or one of ours failed."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.matrix + options.reach + bool(options.read) + bool(options.models) == 0:
        parser.error("name a model, or ask for --reach or the --matrix")
    if options.reach and (options.models or options.matrix or options.read):
        parser.error("--reach knows its models: it goes without models, --read and --matrix")
    if options.reach and options.device != "cpu":
        parser.error("--reach is promised for the processor: it goes without --device")
    if options.keep and options.read:
        parser.error("--keep is for models that are measured now: it goes without --read")
    if options.read and (options.models or options.matrix):
        parser.error(
            "--read shows what was measured before: it goes without models and without --matrix"
        )
    if options.matrix and options.png:
        parser.error("there is no picture of the --matrix")
    if options.png and find_spec("matplotlib") is None:
        raise InvalidArgument(
            "--png needs matplotlib, which is not installed; pip install 'bestof[plot]'"
        )
    for option, file in (("--csv", options.csv), ("--png", options.png), ("--keep", options.keep)):
        if file is not None:
            _check_writable(option, Path(file))
    if options.png:
        check_format(Path(options.png))
    if options.matrix:
        return _matrix(options)
    results = merged(_read(options.read)) if options.read else _measure(options)
    if options.json:
        print(json.dumps([to_dict(one) for one in results], indent=2))
    else:
        _print([table for one in results for table in _tables(one)])
        print_reaches(reaches(results))
    # After the table: what took minutes to measure is not lost with a disk that is full.
    if options.csv:
        _write_csv(results, options.csv)
    if options.png:
        _draw(results, Path(options.png))
    return 0 if all(_is_sound(peer) for one in results for peer in one.peers) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bestof bench model",
        description="Measure whole models: inference or training steps, ours beside every peer's.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="such as vgg16 (the list is below)"
    )
    parser.add_argument(
        "--peers", action="store_true", help="every peer (default: PyTorch as it is, and ours)"
    )
    parser.add_argument("--only", metavar="LIST", help="these peers, separated by commas")
    parser.add_argument("--train", action="store_true", help="training steps in place of inference")
    parser.add_argument(
        "--matrix",
        action="store_true",
        help=f"is any model, of all, below {PROMISE} of what it was?",
    )
    parser.add_argument(
        "--reach",
        action="store_true",
        help="every model of which we promise something, by every peer",
    )
    parser.add_argument(
        "--layers", action="store_true", help="keep what was measured for each convolution"
    )
    parser.add_argument(
        "--batch", default="1", metavar="LIST", help="images a call (default: %(default)s)"
    )
    parser.add_argument(
        "--device", default="cpu", metavar="NAME", help="cpu or cuda (default: %(default)s)"
    )
    parser.add_argument("--threads", metavar="LIST", help="(default: one for each core)")
    parser.add_argument(
        "--size",
        metavar="N or RxC",
        help="rows and columns of the images (default: the model's own)",
    )
    parser.add_argument(
        "--narrow",
        action="store_true",
        help="the small form of the models, in which tests run them",
    )
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="(default: %(default)s)")
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=0.5,
        metavar="S",
        help="of each peer in each round (default: %(default)s)",
    )
    parser.add_argument(
        "--settle",
        type=seconds,
        default=120,
        metavar="S",
        help="for ours to end its trials (default: %(default)s)",
    )
    parser.add_argument(
        "--steps", type=int, default=0, metavar="N", help="keep the times of the first N calls"
    )
    parser.add_argument(
        "--read", nargs="+", metavar="FILE", help="show what --json printed before; later files win"
    )
    parser.add_argument(
        "--keep",
        metavar="FILE",
        help="keep what was measured; measure only what the file lacks, of equal effort",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, times in seconds")
    parser.add_argument(
        "--csv", metavar="FILE", help="write a line for each model and peer as well"
    )
    parser.add_argument(
        "--png", metavar="FILE", help="draw as well; further pictures beside it, the name extended"
    )
    return parser


def _measure(options: argparse.Namespace) -> tuple[ModelTimes, ...]:
    every = options.peers or options.reach
    peers = _peers(options, tuple(peer.name for peer in PEERS) if every else _FEW)
    jobs, effort = (
        promised_jobs() if options.reach else _jobs(options, options.models),
        _effort(options),
    )
    kept = {one.job: one for one in read_kept(Path(options.keep), effort)} if options.keep else {}
    results = []
    with _progress() as progress:
        for job in jobs:
            if (times := kept.get(job)) is None:
                told = _of_job(progress, job)
                layers = options.layers or options.device != "cpu"
                times = measure_model(job, peers, effort, layers=layers, progress=told)
                if options.keep:
                    keep(Path(options.keep), effort, times)
            results.append(times)
    return tuple(results)


def _matrix(options: argparse.Namespace) -> int:
    peers = _peers(options, ("enable", "optimize"))
    names = options.models or [model.name for model in MODELS]
    jobs = _jobs(options, names, modes=(True,) if options.train else (False, True))
    effort, kept = _effort(options), dict[str, Any]()
    if options.keep:
        file = Path(options.keep)
        kept = {"kept": read_kept_rows(file, effort), "keep": partial(keep, file, effort)}
    with _progress() as progress:
        rows = measure_matrix(jobs, peers, effort, progress=progress, **kept)
    if options.json:
        print(json.dumps([to_dict(row) for row in rows], indent=2))
    else:
        _print([("", _MATRIX_HEADINGS, [_matrix_cells(row) for row in rows])])
        below = [row for row in rows if row.below]
        print(f"\n{len(below)} of {len(rows)} below {PROMISE}, all of the quartiles")
    if options.csv:
        _write_csv(rows, options.csv)
    return 1 if any(row.reason for row in rows) else 0


def _jobs(
    options: argparse.Namespace, names: Sequence[str], modes: Sequence[bool] | None = None
) -> list[Job]:
    check_device(options.device)
    size = _size(options.size)
    for name in names:
        model = find_model(name)  # a slip in the last one is told before the first is measured
        if size is not None:
            model.check_size(size)
    cores = len(os.sched_getaffinity(0))
    jobs = []
    for train in modes or (options.train,):
        for name in names:
            for batch in _numbers("--batch", options.batch):
                for threads in _numbers("--threads", options.threads or str(cores)):
                    if threads > cores:
                        print(
                            f"bestof: {threads} threads are left out: {cores} cores are here",
                            file=sys.stderr,
                        )
                        continue
                    jobs.append(
                        Job(
                            name, batch, threads, train, size, options.narrow, device=options.device
                        )
                    )
    if not jobs:
        raise InvalidArgument(f"--threads: no number of threads is left that {cores} cores can run")
    return jobs


def _effort(options: argparse.Namespace) -> Effort:
    return Effort(
        rounds=options.rounds, seconds=options.seconds, settle=options.settle, steps=options.steps
    )


def _peers(options: argparse.Namespace, usual: tuple[str, ...]) -> tuple[Peer, ...]:
    if options.only is None:
        return tuple(peer for peer in find_peers(usual) if options.device in peer.devices)
    peers = find_peers(tuple(name.strip() for name in options.only.split(",")))
    for peer in peers:
        if options.device not in peer.devices:
            raise InvalidArgument(
                f"--only: {peer.name} does not run on {options.device}; leave it out"
            )
    return peers


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidArgument(
            f"{option}: expected numbers, separated by commas; got {text!r}"
        ) from None


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    parts = text.split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() for part in parts):
        raise InvalidArgument(f"--size: expected such as 224 or 224x320; got {text!r}")
    return int(parts[0]), int(parts[-1])


def _read(files: Sequence[str]) -> Iterator[ModelTimes]:
    for file in files:
        try:
            content = json.loads(Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"--read: {file} cannot be read: {error}") from error
        if not isinstance(content, list):
            raise InvalidArgument(f"--read: {file} is not what `bestof bench model --json` printed")
        yield from map(times_from_dict, content)


def _check_writable(option: str, file: Path) -> None:
    """Before minutes are measured; leaves nothing behind."""
    there = file.exists()
    try:
        with file.open("a", encoding="utf-8"):
            pass
        if not there:
            file.unlink()
    except OSError as error:
        raise InvalidArgument(f"{option}: {file} cannot be written: {error}") from error


def _draw(results: Sequence[ModelTimes], file: Path) -> None:
    try:
        for drawn in draw(results, file):
            print(f"bestof: {drawn}", file=sys.stderr)
    except OSError as error:
        raise BestofError(f"--png: {file} cannot be written: {error}") from error


def _write_csv(results: Sequence[ModelTimes] | Sequence[MatrixRow], file: str) -> None:
    try:
        with Path(file).open("w", encoding="utf-8") as stream:
            write_csv(results, stream)
    except OSError as error:
        raise InvalidArgument(f"--csv: {file} cannot be written: {error}") from error


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on the standard error where that is a terminal and rich is there; nothing else."""
    if find_spec("rich") is None or not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console  # noqa: PLC0415  rich is optional, and slow to import
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    with Bar(
        SpinnerColumn(),
        BarColumn(bar_width=28),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=1)

        def tell(text: str, step: int, steps: int) -> None:
            bar.update(task, description=text, completed=step, total=steps)

        yield tell


def _of_job(progress: Progress, job: Job) -> Progress:
    return lambda text, step, steps: progress(f"{job} · {text}", step, steps)


def _is_sound(peer: PeerTime) -> bool:
    """Others may be missing or fail; PyTorch as it is and ours may not."""
    return peer.reason is None or not (peer.ours or peer.name == "eager")


def _against(one: ModelTimes) -> str:
    best = next((peer for peer in one.peers if peer.name == one.best), None)
    return "" if best is None else f": ratios against {best.label}"


def _tables(one: ModelTimes) -> Iterator[_Table]:
    yield f"{one.job}{_against(one)}", _HEADINGS, [_cells(one, peer) for peer in one.peers]
    # Elsewhere the times of layers are for pictures; who tries a device asks what there is to choose from.
    if one.layers and one.job.device != "cpu":
        yield (
            f"{one.job}: the alternatives of each convolution",
            LAYER_HEADINGS,
            layer_rows(one.layers),
        )


def _cells(one: ModelTimes, peer: PeerTime) -> tuple[str, ...]:
    if peer.seconds is None:
        return "", peer.label, peer.reason or "not measured", "", "", "", "", ""
    fastest = min(other.seconds for other in one.peers if other.seconds is not None)
    unsettled = " (unsettled)" if peer.settled is False else ""
    return (
        "*" if peer.seconds == fastest else "",
        peer.label + unsettled,
        f"{peer.seconds * 1e3:.2f}",
        "" if peer.spread is None else f"± {peer.spread * 1e3:.2f}",
        ratio(peer.ratio),
        _quartiles(peer.low, peer.high),
        "" if peer.error is None else f"{peer.error:.0e}",
        "" if peer.peak_bytes is None else f"{peer.peak_bytes / 1e6:.0f}",
    )


def _matrix_cells(row: MatrixRow) -> tuple[str, ...]:
    mode = "training" if row.job.train else "inference"
    name = f"{row.job.model} {mode}, b{row.job.batch}"
    if row.seconds is None or row.replaced_seconds is None:
        return "", name, row.name, row.reason or "not measured", "", "", "", ""
    return (
        "!" if row.below else "",
        name,
        row.name + (" (unsettled)" if row.settled is False else ""),
        f"{row.seconds * 1e3:.2f}",
        f"{row.replaced_seconds * 1e3:.2f}",
        ratio(row.ratio),
        _quartiles(row.low, row.high),
        f"{row.error:.0e}" if row.error else "",
    )


def _quartiles(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def _print(tables: Sequence[_Table]) -> None:
    if find_spec("rich") is None:
        print("\n\n".join("\n".join(_plain(*table)) for table in tables))
        return
    from rich.table import Table  # noqa: PLC0415  rich is optional, and slow to import
    from rich.text import Text  # noqa: PLC0415

    from bestof.view.text import terminal  # noqa: PLC0415

    console = terminal()
    for number, (title, headings, rows) in enumerate(tables):
        if number:
            console.print()
        if title:
            console.print(Text(title, style="bold"), soft_wrap=True)
        words = 1 + sum(heading in _WORDS for heading in headings)
        drawn = Table(box=None, pad_edge=False, header_style="dim")
        for place, heading in enumerate(headings):
            drawn.add_column(heading, justify="left" if place < words else "right", overflow="fold")
        for row in rows:
            style = {"*": "bold green", "!": "bold red"}.get(
                row[0], "" if row[words + 1] else "dim"
            )
            drawn.add_row(*map(Text, row), style=style)
        console.print(drawn)
    sys.stdout.flush()


def _plain(title: str, headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    if title:
        yield title
    words = 1 + sum(heading in _WORDS for heading in headings)
    # What stands in place of a time may be as long as it likes: columns are as wide as times and headings are.
    measured = [headings, *(row for row in rows if row[words + 1])]
    widths = [
        max(len(row[place]) for row in ([headings, *rows] if place < words else measured))
        for place in range(len(headings))
    ]
    for row in (headings, *rows):
        cells = [f"{cell:<{width}}" for cell, width in zip(row[:words], widths, strict=False)]
        cells += [
            f"{cell:>{width}}" for cell, width in zip(row[words:], widths[words:], strict=True)
        ]
        yield "  ".join(cells).rstrip()
