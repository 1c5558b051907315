"""`bestof scale`: find how many ranks of how many threads train a script fastest.

With `--serve`, it finds how many instances serve a plan best; see `scale_serve`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from time import monotonic

from bestof.cli.options import add_json, add_number, parser_of_script, seconds, tell
from bestof.cli.scale_command import PLACE, launched_command, trial_command
from bestof.cli.scale_serve import latency, refuse_for_training, serve
from bestof.cli.script import find_module, find_script, split_arguments
from bestof.cli.termination import INTERRUPTED, interrupted_by_termination
from bestof.errors import BestofError, InvalidArgument
from bestof.processors import available_memory, processors
from bestof.progress import under_way
from bestof.recipe.contestant import Contestant
from bestof.scale.cores import cores
from bestof.scale.environment import candidates
from bestof.scale.environment_search import EnvironmentSearch, Variables, words
from bestof.scale.measure import Measurement, Row
from bestof.scale.split import Split, splits
from bestof.scale.table import lines, records
from bestof.view.quantity import plural

_EPILOG = """\
The script runs under PyTorch's elastic launcher, with each rank on processors of
its own. `{batch}` in its arguments becomes the samples of a rank's step: the
global batch that --batch gives, divided by the number of ranks.

  bestof scale --batch 256 train.py --batch {batch}

A script that divides its global batch by WORLD_SIZE itself needs --divides.

With --serve, PLAN is a file that `plan.save` has written. Processes call it at
the same time. The best setting has the most samples a second among those that
keep 99 % of the calls within --latency.

  bestof scale --serve PLAN --latency 50ms

The script runs several times, in processes that are ended between two steps.
What it writes to files, these runs write; what it prints is not shown."""

_VALUED = ("--batch", "--seconds", "--serve", "--latency")

_ENVIRONMENT_SHARE = 0.5
"""The share of the time that `--environment` takes."""


def call(argv: Sequence[str]) -> int:
    """Parse the arguments, measure, and print the table and the best command line."""
    own, module, rest = split_arguments(argv, _VALUED)
    options = make_parser().parse_args(own)
    if sys.platform != "linux":
        raise BestofError("`bestof scale` pins processes, which it can do on Linux only")
    if options.serve is not None:
        refuse_for_training(options, rest)
        return serve(options, cores(processors()))
    if not rest:
        raise InvalidArgument("nothing to run; usage: bestof scale [options] script.py [arguments]")
    _check(options, rest)
    (find_module if module else find_script)(rest[0], rest[1:])  # an unusable one is refused here
    script = ["-m", *rest] if module else rest
    tried = splits(cores(processors()), None if options.divides else options.batch)
    deadline = monotonic() + options.seconds
    measurement = Measurement(
        partial(Contestant, command=partial(trial_command, script, {})),
        available_memory,
        deadline=deadline - options.environment * _ENVIRONMENT_SHARE * options.seconds,
        tell=tell,
    )
    search = None
    status = 0
    try:
        with under_way("times ranks of one step"), interrupted_by_termination():
            measurement.run(tried)
            if options.environment and measurement.best is not None:
                search = _environment(measurement.best, script, deadline, options.json)
                search.run(candidates(measurement.best.split.threads))
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BestofError as error:
        raise BestofError(f"{shlex.join(script)}: {error}") from error
    _print(measurement, search, script, options)
    return status


def _environment(best: Row, script: list[str], deadline: float, as_json: bool) -> EnvironmentSearch:
    def run(variables: Variables) -> Contestant[Split]:
        return Contestant(best.split, partial(trial_command, script, variables))

    needed = len(best.split.ranks) * (best.memory or 0)
    # The lines are results, and JSON has them at the end.
    told = tell if as_json else partial(print, flush=True)
    return EnvironmentSearch(run, needed, available_memory, deadline=deadline, tell=told)


def _print(
    measurement: Measurement,
    search: EnvironmentSearch | None,
    script: list[str],
    options: argparse.Namespace,
) -> None:
    found = records(measurement.rows)
    best = None if measurement.best is None else measurement.best.split
    command = None
    if best is not None:
        command = shlex.join(launched_command(script, best))
        if search is not None and search.kept:
            command = f"{words(search.kept)} {command}"
    if options.json:
        told = {"splits": found, "best": best and best.name, "command": command}
        if search is not None:
            told["environment"] = [one.record() for one in search.outcomes]
        print(json.dumps(told, indent=2))
        return
    print("\n".join(lines(found)))
    if best is not None:
        threads = plural(best.threads, "thread")
        print(f"best: {plural(len(best.ranks), 'rank')} of {threads}\n{command}")


def _check(options: argparse.Namespace, rest: list[str]) -> None:
    if options.latency is not None:
        raise InvalidArgument("--latency bounds the calls of a plan; pass it with --serve PLAN")
    placed = any(PLACE in one for one in rest[1:])
    if options.divides and (placed or options.batch is not None):
        raise InvalidArgument("--divides leaves the batch to the script; pass no batch with it")
    if not options.divides and (options.batch is None or not placed):
        raise InvalidArgument(
            "the batch of a rank must follow the number of ranks; pass the global batch and its "
            f"place, as in `bestof scale --batch 256 {rest[0]} --batch {PLACE}`, or --divides "
            "if the script divides its batch by WORLD_SIZE"
        )
    if options.batch is not None and options.batch < 1:
        raise InvalidArgument(f"--batch: expected at least 1; got {options.batch}")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of_script(
        "scale",
        "Find how many ranks of how many threads train a script fastest.",
        _EPILOG,
        or_else="--serve PLAN [--latency TIME] [options]",
    )
    add = parser.add_argument
    add("--batch", metavar="N", type=int, help="the samples of a step of all ranks together")
    add("--divides", action="store_true", help="the script divides its batch by WORLD_SIZE")
    add(
        "--environment",
        action="store_true",
        help="then try allocators, huge pages and how threads wait, with the best split",
    )
    add("--serve", metavar="PLAN", help="find how many instances serve a plan best")
    add(
        "--latency",
        metavar="TIME",
        type=latency,
        help="with --serve: the bound of 99 %% of the calls, such as 50ms (default: none)",
    )
    add_number(parser, "--seconds", 600.0, "end after S seconds", seconds)
    add_json(parser)
    return parser
