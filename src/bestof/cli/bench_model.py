"""`bestof bench model`: how fast whole models run, with bestof and with other libraries."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

from bestof.bench.model.device import check_device
from bestof.bench.model.job import Job
from bestof.bench.model.matrix import measure_matrix
from bestof.bench.model.measure import Effort, Progress, measure_model
from bestof.bench.model.models import MODELS, find_model
from bestof.bench.model.peers.table import PEERS, ModelPeer, find_peers
from bestof.bench.model.promises import promised_jobs, promised_peers, reaches
from bestof.bench.model.record import (
    keep,
    merged,
    read_kept,
    read_kept_rows,
    read_results,
    to_dict,
    write_csv,
)
from bestof.bench.model.result import PROMISE, MatrixRow, ModelTimes, PeerTime
from bestof.cli.bench_model_options import make_parser
from bestof.cli.options import check_writable, numbers_of
from bestof.distribution import install
from bestof.errors import BestofError, InvalidArgument
from bestof.progress import progress_bar
from bestof.view.bench.model import matrix_table, model_tables
from bestof.view.bench.model_picture import check_format, draw
from bestof.view.bench.reaches import print_reaches
from bestof.view.bench.table import print_tables
from bestof.whole_file import write_whole

# The peers that are measured by default: PyTorch eager and bestof.
_FEW = tuple(
    one.name for one in PEERS if (one.ours or one.name.startswith("eager")) and not one.static
)
_EVERY = tuple(one.name for one in PEERS if not one.static)
_ONE_ALGORITHM = tuple(one.name for one in PEERS if one.static)
# What the BestOf paper compares: the choice with every static one.
_STATIC = ("eager", "enable", *_ONE_ALGORITHM)


def call(argv: Sequence[str]) -> int:
    """Parse, measure and print. Return 1 if PyTorch eager or bestof failed."""
    parser = make_parser()
    options = parser.parse_args(argv)
    _check_combination(parser, options)
    if options.png and find_spec("matplotlib") is None:
        raise InvalidArgument(f"--png needs matplotlib, which is not installed; {install('plot')}")
    for option, file in (("--csv", options.csv), ("--png", options.png), ("--keep", options.keep)):
        if file is not None:
            check_writable(file, f"a file for {option}")
    if options.png:
        check_format(Path(options.png))
    if options.matrix:
        return _matrix(options)
    results = merged(_read(options.read)) if options.read else _measure(options)
    if options.json:
        print(json.dumps([to_dict(one) for one in results], indent=2))
    else:
        print_tables([table for one in results for table in model_tables(one)])
        print_reaches(reaches(results))
    # Write files after the table: a full disk must not lose what took minutes to measure.
    if options.csv:
        _write_csv(results, options.csv)
    if options.png:
        _draw(results, Path(options.png))
    return 0 if all(_is_sound(peer) for one in results for peer in one.peers) else 1


def _check_combination(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exit with wrong usage if options contradict each other."""
    if options.matrix + options.reach + bool(options.read) + bool(options.models) == 0:
        parser.error("name a model, or ask for --reach or the --matrix")
    if options.reach and (options.models or options.matrix or options.read):
        parser.error("--reach knows its models: it goes without models, --read and --matrix")
    if options.static and (options.peers or options.reach or options.matrix or options.only):
        parser.error("--static names its peers: it goes without --peers, --only, --reach, --matrix")
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


def _measure(options: argparse.Namespace) -> tuple[ModelTimes, ...]:
    usual = _EVERY if options.peers else _STATIC if options.static else _FEW
    named = _peers(options, usual)
    promised = options.reach and not (options.peers or options.only)
    jobs, effort = (
        promised_jobs() if options.reach else _jobs(options, options.models),
        _effort(options),
    )
    kept = read_kept(Path(options.keep), effort) if options.keep else ()
    results = []
    with progress_bar() as progress:
        for job in jobs:
            peers = find_peers(promised_peers(job)) if promised else named
            if (times := _kept_times(kept, job, peers)) is None:
                told = _of_job(progress, job)
                layers = options.layers or options.device != "cpu"
                times = measure_model(job, peers, effort, layers=layers, progress=told)
                if options.keep:
                    keep(Path(options.keep), effort, times)
            results.append(times)
    return tuple(results)


def _kept_times(
    kept: Sequence[ModelTimes], job: Job, peers: Sequence[ModelPeer]
) -> ModelTimes | None:
    """Return the newest kept result of a job that has all these peers. A peer cannot be added:
    ratios are of times in turn.
    """
    names = [peer.name for peer in peers if peer.runs(job)]
    return next((one for one in reversed(kept) if one.job == job and one.has(names)), None)


def _matrix(options: argparse.Namespace) -> int:
    peers = _peers(options, ("enable", "optimize"))
    # A size of images does not fit the models of text.
    names = options.models or [
        model.name for model in MODELS if options.size is None or not model.text
    ]
    jobs = _jobs(options, names, modes=(True,) if options.train else (False, True))
    effort, kept = _effort(options), dict[str, Any]()
    if options.keep:
        file = Path(options.keep)
        kept = {"kept": read_kept_rows(file, effort), "keep": partial(keep, file, effort)}
    with progress_bar() as progress:
        rows = measure_matrix(jobs, peers, effort, progress=progress, **kept)
    if options.json:
        print(json.dumps([to_dict(row) for row in rows], indent=2))
    else:
        print_tables([matrix_table(rows)])
        below = [row for row in rows if row.below]
        print(f"\n{len(below)} of {len(rows)} are below {PROMISE} in all quartiles")
    if options.csv:
        _write_csv(rows, options.csv)
    return 1 if any(row.reason for row in rows) else 0


def _jobs(
    options: argparse.Namespace, names: Sequence[str], modes: Sequence[bool] | None = None
) -> list[Job]:
    check_device(options.device)
    size = _size(options.size)
    for name in names:
        model = find_model(name)  # check all before measuring the first
        if size is not None:
            model.check_size(size)
    cores = len(os.sched_getaffinity(0))
    counts = numbers_of(options.threads or str(cores), "--threads")
    for threads in (one for one in counts if one > cores):
        print(f"bestof: {threads} threads are left out: {cores} cores are here", file=sys.stderr)
    jobs = [
        Job(
            *(name, batch, threads, train, size, options.narrow),
            device=options.device,
            dtype=dtype,
            beside=beside,
            plans=options.plans,
        )
        for train in modes or (options.train,)
        for name in names
        for batch in numbers_of(options.batch, "--batch")
        for threads in counts
        if threads <= cores
        for dtype in options.dtype.split(",")
        for beside in numbers_of(options.beside, "--beside", least=0)
    ]
    if not jobs:
        raise InvalidArgument(f"--threads: no number of threads is left that {cores} cores can run")
    return jobs


def _effort(options: argparse.Namespace) -> Effort:
    return Effort(
        rounds=options.rounds, seconds=options.seconds, settle=options.settle, steps=options.steps
    )


def _peers(options: argparse.Namespace, usual: tuple[str, ...]) -> tuple[ModelPeer, ...]:
    if options.only is None:
        return tuple(peer for peer in find_peers(usual) if options.device in peer.devices)
    peers = find_peers(tuple(name.strip() for name in options.only.split(",")))
    for peer in peers:
        if options.device not in peer.devices:
            raise InvalidArgument(
                f"--only: {peer.name} does not run on {options.device}; leave it out"
            )
    return peers


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
            yield from read_results(Path(file))
        except InvalidArgument as error:
            raise InvalidArgument(f"--read: {error}") from error
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"--read: {file} cannot be read: {error}") from error


def _draw(results: Sequence[ModelTimes], file: Path) -> None:
    try:
        for drawn in draw(results, file):
            print(f"bestof: {drawn}", file=sys.stderr)
    except OSError as error:
        raise BestofError(f"--png: {file} cannot be written: {error}") from error


def _write_csv(results: Sequence[ModelTimes] | Sequence[MatrixRow], file: str) -> None:
    text = StringIO()
    write_csv(results, text)
    try:
        write_whole(file, text.getvalue())
    except OSError as error:
        raise InvalidArgument(f"--csv: {file} cannot be written: {error}") from error


def _of_job(progress: Progress, job: Job) -> Progress:
    return lambda text, step, steps: progress(f"{job} · {text}", step, steps)


def _is_sound(peer: PeerTime) -> bool:
    """Return whether the exit status may be 0 with this result.

    Only PyTorch eager and bestof must have a time. One algorithm for all layers may be too
    inaccurate: Winograd's F(4) was, in a ResNet34 on images of 32x32.
    """
    needed = (peer.ours or peer.name == "eager") and peer.name not in _ONE_ALGORITHM
    return peer.reason is None or not needed
