"""`bestof scale --serve`: find how many instances of how many threads serve a plan best."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic

from bestof.cli.options import tell
from bestof.cli.termination import INTERRUPTED, interrupted_by_termination
from bestof.errors import BestofError, InvalidArgument
from bestof.processors import available_memory
from bestof.progress import under_way
from bestof.scale.cores import Cores
from bestof.scale.experiment import check_room
from bestof.scale.instances import Instances
from bestof.scale.serving import ServingMeasurement, shown
from bestof.scale.split import Split, splits
from bestof.scale.table import serving_lines, serving_records, start_lines

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def latency(text: str) -> float:
    """Return the seconds of a text such as 50ms; for `type` of an option."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|us)", text.strip())
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"expected a time such as 50ms or 0.2s; got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def serve(options: argparse.Namespace, cores: Cores) -> int:
    """Measure, and print the table and how to start the best setting."""
    # Here, because `bestof completion` reads the parser, and needs no PyTorch.
    from bestof.scale.plan_inputs import batches_of  # noqa: PLC0415

    file = options.serve
    if Path(file).is_file():  # `batches_of` tells of other files
        check_room(Path(file).stat().st_size, available_memory())
    batches, kind = batches_of(file)
    tell(f"{file} serves inputs of {kind} in the batches {', '.join(map(str, batches))}")
    if len(batches) == 1:
        tell(
            f"other batches are not tried: call plan.prepare for them before plan.save, and {file} "
            "will hold them"
        )
    measurement = ServingMeasurement(
        partial(Instances, file),
        available_memory,
        options.latency,
        deadline=monotonic() + options.seconds,
        tell=tell,
    )
    status = 0
    try:
        with under_way("times instances"), interrupted_by_termination():
            measurement.run(_settings(cores, batches))
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BestofError as error:
        raise BestofError(f"{file}: {error}") from error
    _print(measurement, options)
    if status == 0 and measurement.best is None:
        raise BestofError(_no_setting(measurement, options.latency))
    return status


def refuse_for_training(options: argparse.Namespace, rest: list[str]) -> None:
    """Raise InvalidArgument for options and arguments that go with a script only."""
    if rest:
        raise InvalidArgument(f"--serve takes a plan and no script; got {rest[0]!r} behind it")
    if options.batch is not None or options.divides or options.environment:
        raise InvalidArgument(
            "--batch, --divides and --environment go with a script; --serve takes the batches of "
            "the plan"
        )


def _settings(cores: Cores, batches: list[int]) -> list[Split]:
    return [replace(one, batch=batch) for batch in batches for one in splits(cores, None)]


def _no_setting(measurement: ServingMeasurement, bound: float) -> str:
    nearest = measurement.nearest()
    assert nearest is not None
    assert nearest.p99 is not None
    return (
        f"no setting keeps 99 % of the calls within {bound * 1e3:.4g} ms; the nearest is "
        f"{shown(nearest.split)}: {nearest.p99 * 1e3:.4g} ms; pass a larger --latency, or a plan "
        "of smaller batches"
    )


def _print(measurement: ServingMeasurement, options: argparse.Namespace) -> None:
    found = serving_records(measurement.rows, options.latency)
    best = measurement.best
    started = [] if best is None else start_lines(best.split)
    if options.json:
        chosen = None if best is None else serving_records([best], options.latency)[0]
        told = {"settings": found, "best": chosen, "commands": started}
        print(json.dumps(told, indent=2))
        return
    print("\n".join(serving_lines(found)))
    if best is not None:
        print(f"best: {shown(best.split)}\nstart your server, SERVER, once for each instance:")
        print("\n".join(started))
