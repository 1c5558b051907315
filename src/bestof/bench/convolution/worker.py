"""The process of one side: `python -m bestof.bench.convolution.worker SIDE`.

It reads one request a line and answers with one line, both in JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from time import perf_counter
from typing import Any

from bestof.bench.convolution.case import Case
from bestof.bench.convolution.run import Run

# A call before those that count, unless one takes this long: then neither caches nor sleeping threads matter.
_LONG = 0.05


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a side tells of one of its runs: see `Run`. `seconds` is its second call."""

    seconds: float
    samples: list[float]
    work: float | None
    scratch_bytes: int | None


def _case(fields: dict[str, Any]) -> Case:
    pairs = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Case(**{**fields, **pairs})


def _prepare(run: Run) -> Prepared:
    run.call()
    started = perf_counter()
    run.call()
    return Prepared(perf_counter() - started, run.samples(), run.work, run.scratch_bytes)


def _time(run: Run, expected: float, seconds: float) -> list[float]:
    if expected < _LONG:
        run.call()
    times: list[float] = []
    begin = perf_counter()
    while not times or perf_counter() - begin < seconds:
        started = perf_counter()
        run.call()
        times.append(perf_counter() - started)
    return times


def main(name: str) -> None:
    """Answer requests until the standard input ends."""
    answers, sys.stdout = (
        sys.stdout,
        sys.stderr,
    )  # what a library prints must not be taken for an answer
    side: Any = import_module(f"bestof.bench.convolution.peers.{name}")
    runs: dict[str, Run] = {}
    expected: dict[str, float] = {}
    for line in sys.stdin:
        request = json.loads(line)
        answer: object
        if request["do"] == "version":
            answer = side.version()
        elif request["do"] == "prepare":
            runs.clear()
            runs.update(side.prepare(_case(request["case"])))
            prepared = {name: _prepare(run) for name, run in runs.items()}
            expected = {name: one.seconds for name, one in prepared.items()}
            answer = {name: asdict(one) for name, one in prepared.items()}
        else:
            answer = _time(runs[request["run"]], expected[request["run"]], request["seconds"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
