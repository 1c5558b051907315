"""Measures the engines of a model, each in its own process, in turn."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

from bestof.accuracy import Accuracy
from bestof.errors import BenchError
from bestof.torch.engines.choice import EngineResult
from bestof.torch.engines.engine import Engine
from bestof.torch.engines.table import PLAN, find_engines
from bestof.torch.engines.tolerance import allowed_error
from bestof.torch.engines.travel import Inputs, send
from bestof.worker.process import OutOfPatience, WorkerProcess

PATIENCE = 40.0
"""Seconds until all engines are built for some inputs: one that is not ready by then is out.

The plan has as many seconds of its own. Seconds in which a process waits for a processor do not
count: what was late on a crowded machine would stay out in the store."""

_CROWDED = 2 * PATIENCE
"""The most seconds of an order that do not count."""

_START_PATIENCE = 120.0  # seconds until PyTorch is imported and the model is read
_SECONDS = 0.2  # of each engine in each round
# After each round, an engine that is so many times as slow as the fastest is measured no more.
_HOPELESS = (4.0, 4.0, 2.0, 1.5, 1.3, 1.3)
_LONGEST = 200  # characters of a reason: some libraries print whole graphs
(_EAGER,) = find_engines(["eager"])


@dataclass(slots=True)
class _Contestant:
    """One engine during a contest: its process, why it failed, and its results by the inputs."""

    engine: Engine
    process: WorkerProcess
    failed: str | None = None
    reasons: dict[int, str] = field(default_factory=dict)
    samples: dict[int, list[float]] = field(default_factory=dict)
    errors: dict[int, float] = field(default_factory=dict)
    builds: dict[int, float] = field(default_factory=dict)

    def ask(self, order: str, place: int, until: float, **arguments: Any) -> Any:
        """Return the answer to an order, or None if the engine fails for these inputs."""
        if self.is_out(place):
            return None
        self.tell(order, place, **arguments)
        return self.answer(order, place, until)

    def tell(self, order: str, place: int, **arguments: Any) -> None:
        try:
            self.process.send(order, place=place, **arguments)
        except BenchError as error:
            self.failed = str(error)

    def answer(self, order: str, place: int, until: float, crowded: float = 0.0) -> Any:
        """Return the answer to an order that was told. A process that ended is out for good."""
        if self.failed is not None:
            return None
        try:
            patience = max(0.0, until - monotonic())
            return self.process.receive(order, patience, crowded=crowded)
        except BenchError as error:
            is_late = order == "build" and isinstance(error, OutOfPatience)
            reason = _late() if is_late else shorten(str(error), _LONGEST, placeholder=" ...")
            if self.process.is_alive():
                self.reasons[place] = reason
            else:
                self.failed = reason
            return None

    def is_out(self, place: int) -> bool:
        return self.failed is not None or place in self.reasons

    def reason(self, place: int) -> str | None:
        return self.reasons.get(place, self.failed)

    def result(self, place: int) -> EngineResult:
        return EngineResult(
            self.engine.name,
            self.engine.version,
            tuple(self.samples.get(place, ())),
            self.errors.get(place),
            self.reason(place),
            self.builds.get(place),
        )


def measure(
    model: nn.Module, inputs: Sequence[Inputs], engines: Sequence[Engine], accuracy: Accuracy
) -> list[tuple[EngineResult, ...]]:
    """Return the results of the engines for each of the inputs.

    TorchError if the model cannot be sent to other processes, or does not run there.
    """
    halves = any(
        one.dtype in (torch.bfloat16, torch.float16)
        for one in (*model.parameters(), *(leaf for leaves, _ in inputs for leaf in leaves))
        if isinstance(one, Tensor)
    )
    with TemporaryDirectory(prefix="bestof-") as folder, ExitStack() as stack:
        send(model, inputs, Path(folder))
        contestants = [
            _Contestant(one, stack.enter_context(_started(one, folder, accuracy)))
            for one in engines
        ]
        judge = _Contestant(_EAGER, stack.enter_context(_started(_EAGER, folder, accuracy)))
        for one in (*contestants, judge):
            one.tell("start", 0)
        until = monotonic() + _START_PATIENCE
        for one in (*contestants, judge):
            one.answer("start", 0, until)
        for place in range(len(inputs)):
            _prepare(contestants, judge, place, Path(folder), accuracy, halves)
        judge.process.close()
        for place in range(len(inputs)):
            _time(contestants, place)
        return [tuple(one.result(place) for one in contestants) for place in range(len(inputs))]


def _started(engine: Engine, folder: str, accuracy: Accuracy) -> WorkerProcess:
    threads = torch.get_num_threads()
    job = {
        "engine": engine.name,
        "module": engine.module,
        "options": dict(engine.options),
        "folder": folder,
        "threads": threads,
        "accuracy": accuracy,
        "path": sys.path,
        "parent": os.getpid(),
    }
    # The plan keeps its choices where the caller's process will look for them.
    store = os.environ.get("BESTOF_STORE", "")
    environment = {"BESTOF_STORE": store, "PYTHONSAFEPATH": "1"}
    return WorkerProcess("bestof.torch.engines.worker", json.dumps(job), threads, environment)


def _prepare(
    contestants: Sequence[_Contestant],
    judge: _Contestant,
    place: int,
    folder: Path,
    accuracy: Accuracy,
    halves: bool,
) -> None:
    """Build the engines for some inputs, and compare their outputs with the model in float64.

    Those that may be built at the same time come first. The others follow one by one.
    """
    file = str(folder / f"expected-{place}.pt")
    facts = judge.ask("expect", place, monotonic() + PATIENCE, file=file)
    reason = judge.reason(place) if facts is None else facts["reason"]
    if reason is not None:
        for one in contestants:
            if one.engine.name != PLAN:
                one.reasons[place] = f"it cannot be compared: {reason}"
    until = monotonic() + PATIENCE
    running = [one for one in contestants if not one.is_out(place)]
    until += _build([one for one in running if not one.engine.alone], place, until)
    for one in running:
        if one.engine.alone:
            # The plan is what answers if others fail, so it has its own time.
            is_plan = one.engine.name == PLAN
            until += _build([one], place, monotonic() + PATIENCE if is_plan else until)
    if facts is not None and reason is None:
        allowed = allowed_error(accuracy, facts["eager"], facts["rounded"], halves)
        for one in contestants:
            _compare(one, place, file, allowed)


def _build(contestants: Sequence[_Contestant], place: int, until: float) -> float:
    """Build engines at the same time. Return the seconds in which they waited for a processor."""
    for one in contestants:
        if monotonic() < until:
            one.tell("build", place)
        else:
            one.reasons[place] = _late()
    lost = 0.0
    for one in contestants:
        if not one.is_out(place):
            seconds = one.answer("build", place, until, _CROWDED)
            if seconds is not None:
                one.builds[place] = seconds
            lost = max(lost, min(_CROWDED, one.process.lost))
    return lost


def _late() -> str:
    return f"it was not ready when the {PATIENCE:.0f} s for all engines had passed"


def _compare(one: _Contestant, place: int, file: str, allowed: float) -> None:
    error = one.ask("error", place, monotonic() + PATIENCE, file=file)
    if error is None:
        return
    one.errors[place] = error
    if not error <= allowed:
        one.reasons[place] = (
            f"wrong by {error:.1e} of the outputs' root mean square ({allowed:.0e} allowed)"
        )


def _time(contestants: Sequence[_Contestant], place: int) -> None:
    """Let the engines call in turn, in rounds. One that is far slower stops early."""
    running = [one for one in contestants if not one.is_out(place)]
    for number, hopeless in enumerate(_HOPELESS):
        # Rotated: an engine starts with the caches and the clock rate of the previous one.
        first = number % max(1, len(running))
        for one in running[first:] + running[:first]:
            seconds = one.ask("time", place, monotonic() + PATIENCE, seconds=_SECONDS)
            if seconds is not None:
                one.samples.setdefault(place, []).append(seconds)
        running = [one for one in running if not one.is_out(place)]
        fastest = min((min(one.samples[place]) for one in running), default=0.0)
        running = [one for one in running if min(one.samples[place]) <= hopeless * fastest]
