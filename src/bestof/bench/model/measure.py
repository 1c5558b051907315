"""Measures how fast peers run a model, each in its own process, in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bestof.bench.model.error import relative_error
from bestof.bench.model.job import Job
from bestof.bench.model.layers import layer_times
from bestof.bench.model.peers.table import REFERENCE, ModelPeer
from bestof.bench.model.process import start_peer
from bestof.bench.model.result import LayerTimes, ModelTimes, PeerTime
from bestof.bench.neighbours import busy
from bestof.bench.quartiles import Quartiles, spread
from bestof.errors import BenchError, InvalidArgument
from bestof.selection.identity.host import machine
from bestof.torch.engines.tolerance import OVER_AUTOCAST, RELAXED
from bestof.worker.process import WorkerProcess

# The number of steps whose losses are compared. A wrong gradient does not show in the first one.
_COMPARED_STEPS = 3
_ROUNDED = "reference-bfloat16.npy"
_MEMORY_CALLS = 3


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    In each of `rounds`, every peer runs for `seconds`, and at least `calls` times. After `settle`
    seconds, a peer that still makes trials is timed unsettled. The times of the first `steps`
    calls, at least, are kept. `patience` is the limit for the preparation of a peer, in seconds.
    """

    rounds: int = 7
    seconds: float = 0.5
    calls: int = 2
    settle: float = 120.0
    steps: int = 0
    patience: float = 900.0

    def __post_init__(self) -> None:
        for name in ("rounds", "calls"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name}: expected at least 1; got {getattr(self, name)}")
        for name in ("seconds", "settle", "steps"):
            if getattr(self, name) < 0:
                raise InvalidArgument(f"{name}: expected at least 0; got {getattr(self, name)}")


Alone = Callable[[], AbstractContextManager[object]]
"""A context around each measurement. On a shared machine, it can wait for a quiet moment."""
Progress = Callable[[str, int, int], object]
"""Called with a text on the current step, its number, and the number of steps."""


def silent(_text: str, _step: int, _steps: int) -> None:
    """Report no progress."""


@dataclass(slots=True)
class _Runner:
    """One peer during a measurement: its process until it fails, and the results so far."""

    peer: ModelPeer
    process: WorkerProcess | None = None
    reason: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    first: list[float] = field(default_factory=list)
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def times(self) -> list[float]:
        """The seconds of all calls of all rounds."""
        return [seconds for one in self.rounds for seconds in one]

    def ask(self, order: str, patience: float, **arguments: Any) -> dict[str, Any] | None:
        """Return the answer of the peer's process, or None if the peer has failed."""
        if self.process is None or self.reason is not None:
            return None
        try:
            answer: dict[str, Any] = self.process.ask(order, patience=patience, **arguments)
        except BenchError as error:
            self.reason = str(error)
            return None
        return answer


def measure_model(
    job: Job,
    peers: Sequence[ModelPeer],
    effort: Effort = Effort(),
    *,
    layers: bool = False,
    alone: Alone = nullcontext,
    progress: Progress = silent,
) -> ModelTimes:
    """Measure one job by these peers.

    PyTorch eager always runs, because all results are compared with its. A peer that is missing,
    fails or is wrong has a reason instead of a time. Peers of bestof have a row for each of the
    job's `plans`. With `layers`, the measurements of the first peer of bestof for each convolution
    are kept too.
    """
    peers = [peer for peer in peers if peer.runs(job)]
    every = [peer for peer in peers for _ in range(job.plans if peer.ours else 1)]
    runners = [_Runner(peer) for peer in ([] if REFERENCE in peers else [REFERENCE]) + every]
    steps = len(runners) * 2 + effort.rounds
    with ExitStack() as stack, TemporaryDirectory() as folder:
        reference = Path(folder, "reference.npy")
        for number, runner in enumerate(runners):
            progress(f"{runner.peer.label}: prepares", number, steps)
            _prepare(runner, job, effort, stack, Path(folder), reference)
        with alone():
            for number, runner in enumerate(runners):
                progress(f"{runner.peer.label}: settles", len(runners) + number, steps)
                _settle(runner, effort)
            peak, bound = _bound(runners, effort) if _has_bound(job) else (None, None)
            with busy(job.beside):
                _time_in_turn(runners, effort, progress)
        for runner in runners:
            _check_again(runner, job, effort, Path(folder), reference)
        found = _layers(runners, effort) if layers else ()
        for runner in runners:
            _weigh(runner, effort)
    wanted = [runner for runner in runners if runner.peer in peers]
    best = _best(wanted)
    return ModelTimes(
        job,
        None if best is None else best.peer.name,
        tuple(_time(one, best) for one in wanted),
        found,
        machine(),
        peak,
        bound,
    )


def _prepare(
    runner: _Runner, job: Job, effort: Effort, stack: ExitStack, folder: Path, reference: Path
) -> None:
    missing = runner.peer.missing
    if missing:
        runner.reason = f"not installed: {', '.join(missing)}"
        return
    runner.process = stack.enter_context(start_peer(job.by(runner.peer.name)))
    if runner.peer is REFERENCE and job.dtype != "float32":
        runner.ask("exact", effort.patience, file=str(reference))
    answer = runner.ask("prepare", effort.patience)
    file = folder / f"{runner.peer.name}.npy"
    if runner.peer is REFERENCE:
        file = reference if job.dtype == "float32" else reference.with_name(_ROUNDED)
    first = runner.ask("first", effort.patience, file=str(file), calls=_COMPARED_STEPS)
    if answer is None or first is None:
        return
    runner.facts["prepare_seconds"] = answer["seconds"] + first["seconds"][0]
    runner.facts["prepare_bytes"] = answer["peak"]
    runner.first = first["seconds"]
    if runner.peer is REFERENCE and not job.train and job.dtype == "float32":
        runner.ask("rounded", effort.patience, file=str(reference.with_name(_ROUNDED)))
        runner.reason = None  # the model is measured even if autocast cannot run it
    _compare(runner, job, file, reference)


def _settle(runner: _Runner, effort: Effort) -> None:
    answer = runner.ask(
        "settle",
        effort.patience + effort.settle,
        limit=effort.settle,
        least=max(0, effort.steps - len(runner.first)),
    )
    if answer is not None:
        runner.first += answer["seconds"]
        if runner.peer.ours:
            runner.facts["settled"] = answer["settled"]


def _has_bound(job: Job) -> bool:
    """Return whether the peak that is measured is that of the job."""
    return not job.train and job.device == "cpu" and job.dtype == "float32" and job.plans == 1


def _bound(runners: Sequence[_Runner], effort: Effort) -> tuple[float | None, float | None]:
    """Return the measured peak, and the seconds that the direct algorithms need at it."""
    eager = next(runner for runner in runners if runner.peer is REFERENCE)
    before = eager.reason
    answer = eager.ask("bound", effort.patience)
    eager.reason = before  # a model whose work cannot be counted is measured all the same
    return (None, None) if answer is None else (answer["peak"], answer["seconds"])


def _time_in_turn(runners: Sequence[_Runner], effort: Effort, progress: Progress) -> None:
    steps = len(runners) * 2 + effort.rounds
    for number in range(effort.rounds):
        # Rotate the order, because a peer starts with the caches and the clock rate of the
        # previous one.
        first = number % len(runners)
        for runner in (*runners[first:], *runners[:first]):
            label = f"round {number + 1}: {runner.peer.label}"
            progress(label, 2 * len(runners) + number, steps)
            answer = runner.ask("time", effort.patience, seconds=effort.seconds, least=effort.calls)
            if answer is not None:
                runner.rounds.append(answer["seconds"])


def _check_again(runner: _Runner, job: Job, effort: Effort, folder: Path, reference: Path) -> None:
    """Compare results once more, because the final choice of bestof must be correct too."""
    if job.train or not runner.peer.ours:
        return
    file = folder / f"{runner.peer.name}-again.npy"
    if runner.ask("again", effort.patience, file=str(file)) is not None:
        _compare(runner, job, file, reference)


def _compare(runner: _Runner, job: Job, file: Path, reference: Path) -> None:
    if not reference.exists():
        runner.reason = runner.reason or "PyTorch eager failed: there is nothing to compare with"
        return
    expected, got = np.load(reference).astype(np.float64), np.load(file).astype(np.float64)
    if expected.size != got.size:
        runner.reason = f"wrong: {got.shape} values in place of {expected.shape}"
        return
    error = relative_error(got.reshape(expected.shape), expected)
    runner.facts["error"] = max(error, runner.facts.get("error", 0.0))
    rounded, rounds = reference.with_name(_ROUNDED), job.dtype != "float32" or runner.peer.rounds
    allowed = max(runner.peer.tolerance_on(job.device), RELAXED if rounds else 0.0)
    if rounds and rounded.exists():
        lost = relative_error(np.load(rounded).astype(np.float64).reshape(expected.shape), expected)
        allowed = max(allowed, OVER_AUTOCAST * lost)
    if not error <= allowed:
        runner.reason = (
            f"wrong by {error:.1e} of the results' root mean square ({allowed:.0e} allowed)"
        )


def _weigh(runner: _Runner, effort: Effort) -> None:
    """Ask for the memory. This is the last order to a process. The peer keeps its time if it
    cannot tell."""
    before = runner.reason
    answer = runner.ask("memory", effort.patience, calls=_MEMORY_CALLS)
    runner.reason = before
    if answer is not None:
        runner.facts["peak_bytes"] = answer["peak"]


def _layers(runners: Sequence[_Runner], effort: Effort) -> tuple[LayerTimes, ...]:
    for runner in runners:
        answer = runner.ask("layers", effort.patience) if runner.peer.ours else None
        if answer is not None:
            found = layer_times(answer["report"], answer["order"])
            if found:
                return found
    return ()


def _best(runners: Sequence[_Runner]) -> _Runner | None:
    others = [one for one in runners if not one.peer.ours and one.reason is None and one.rounds]
    return min(others, key=lambda one: median(one.times), default=None)


def _time(runner: _Runner, best: _Runner | None) -> PeerTime:
    peer = runner.peer
    row = PeerTime(peer.name, peer.label, peer.ours, reason=runner.reason, **runner.facts)
    if runner.reason is not None or not runner.rounds:
        return row
    times = runner.times
    row = replace(
        row,
        seconds=median(times),
        least=min(times),
        spread=spread(times),
        first_seconds=tuple(runner.first),
    )
    if best is None:
        return row
    ratios = [
        median(theirs) / median(own) for theirs, own in zip(best.rounds, runner.rounds, strict=True)
    ]
    ratio = Quartiles.of(ratios)
    return replace(row, ratio=ratio.middle, low=ratio.low, high=ratio.high)
