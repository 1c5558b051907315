"""Measures convolutions by all peers in turn, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from time import sleep
from typing import NamedTuple

from bestof.bench.convolution.case import Case
from bestof.bench.convolution.peer_worker import Prepared
from bestof.bench.convolution.peers.table import MACHINE, NATIVE, PEERS
from bestof.bench.convolution.result import LayerTimes, Time
from bestof.bench.convolution.side import Side
from bestof.bench.quartiles import Quartiles
from bestof.errors import BenchError, WrongResult
from bestof.selection.identity.host import machine

_OURS = (MACHINE.name, NATIVE.name)

# The seconds after which threads of an OpenMP pool stop spinning: 300,000 pauses of 140 cycles take
# 17 ms.
_PAUSE = 0.02

# After this many rounds, native algorithms leave that take twice as long as another one. A single
# round may be a slow moment of the machine.
_TRIED = 2

# The largest difference between the sides, relative to the rms. It is ten times what Winograd F(6)
# promises, or ten times what the algorithms that round to bfloat16 promise.
_TOLERANCE = {"float32": 3e-3, "bfloat16": 3e-2}


class _Runner(NamedTuple):
    """One run of one peer with one number of threads."""

    threads: int
    side: str
    name: str


@dataclass(frozen=True, slots=True)
class Sides:
    """The peers of a measurement.

    `running` holds the processes that answered, grouped by number of threads. `missing` says why
    other peers did not answer.
    """

    running: tuple[Side, ...]
    missing: dict[str, str]
    versions: dict[str, str]

    @classmethod
    def start(cls, threads: Sequence[int], stack: ExitStack, dtype: str = "float32") -> Sides:
        """Start every peer that measures cases of `dtype`. The processes end with `stack`.

        Raises BenchError if the native peer, or that of the machine, does not answer.
        """
        peers = [peer for peer in PEERS if dtype in peer.dtypes]
        running: list[Side] = []
        missing: dict[str, str] = {}
        versions: dict[str, str] = {}
        for count in threads:
            for peer in (MACHINE, NATIVE, *peers):
                if peer.name in missing:
                    continue
                try:
                    side = stack.enter_context(Side(peer, count))
                except BenchError as error:
                    if peer in (MACHINE, NATIVE):
                        raise
                    missing[peer.name] = str(error)
                else:
                    running.append(side)
                    versions[peer.name] = side.version
        return cls(tuple(running), missing, versions)


def measure(
    case: Case,
    layer: str,
    sides: Sides,
    *,
    rounds: int,
    seconds: float,
    pause: Callable[[float], None] = sleep,
) -> tuple[LayerTimes, ...]:
    """Measure one case with each number of threads in `sides`. Return a result for each number.

    In each round, all runs follow one after the other, each for `seconds`. A slow moment of the
    machine thus affects all of them. Raises WrongResult if a native algorithm disagrees with a
    peer.
    """
    by_key = {(side.threads, side.name): side for side in sides.running}
    prepared: dict[_Runner, Prepared] = {}
    failed: dict[str, str] = dict(sides.missing)
    for (threads, name), side in by_key.items():
        try:
            runs = side.prepare(case)
        except BenchError as error:
            if name in _OURS:
                raise
            failed[name] = str(error)
            continue
        if not runs:
            failed[name] = "has no such pass"
        prepared.update({_Runner(threads, name, run): one for run, one in runs.items()})
    _compare(case, layer, prepared)
    times: dict[_Runner, list[float]] = {runner: [] for runner in prepared}
    slow: set[_Runner] = set()
    for number in range(rounds):
        if number == _TRIED:
            slow = _slow(times)
        for runner, samples in times.items():
            if number >= _TRIED and runner in slow:
                continue
            if runner.threads > 1:
                pause(_PAUSE)
            samples.append(median(by_key[runner.threads, runner.side].time(runner.name, seconds)))
    return tuple(
        _layer_times(case, layer, threads, times, prepared, failed)
        for threads in dict.fromkeys(side.threads for side in sides.running)
    )


def _slow(times: dict[_Runner, list[float]]) -> set[_Runner]:
    """Return the native runs whose best round took more than twice as long as that of another."""
    first = {
        runner: min(samples) for runner, samples in times.items() if runner.side == NATIVE.name
    }
    best = {
        threads: min(seconds for runner, seconds in first.items() if runner.threads == threads)
        for threads in {runner.threads for runner in first}
    }
    return {runner for runner, seconds in first.items() if seconds > 2 * best[runner.threads]}


def _compare(case: Case, layer: str, prepared: dict[_Runner, Prepared]) -> None:
    """Raise WrongResult if a peer disagrees with the others, so that a fast wrong one cannot
    win."""
    rows = [
        (runner, one.samples) for runner, one in prepared.items() if runner.side != MACHINE.name
    ]
    reference = next(
        (samples for runner, samples in rows if runner.side != NATIVE.name), rows[0][1]
    )
    tolerance = _TOLERANCE[case.dtype]
    rms = (sum(value * value for value in reference) / max(len(reference), 1)) ** 0.5
    for runner, samples in rows:
        worst = max((abs(a - b) for a, b in zip(samples, reference, strict=True)), default=0.0)
        if not worst <= tolerance * rms:
            raise WrongResult(
                f"{case.direction} of {layer}, batch {case.batch}: "
                f"{runner.side} {runner.name} is {worst / rms:.1e} of the rms away from the "
                f"others; {tolerance:.0e} is allowed"
            )


def _layer_times(
    case: Case,
    layer: str,
    threads: int,
    times: dict[_Runner, list[float]],
    prepared: dict[_Runner, Prepared],
    failed: dict[str, str],
) -> LayerTimes:
    own = {runner: samples for runner, samples in times.items() if runner.threads == threads}
    peers = {runner.side: samples for runner, samples in own.items() if runner.side not in _OURS}
    peak, bandwidth = (
        max(
            (prepared[runner].work or 0.0) / min(samples) for runner, samples in _machine(own, kind)
        )
        for kind in ("multiply-add", "copy")
    )

    def time(runner: _Runner, samples: list[float]) -> Time:
        ratios = {
            peer: Quartiles.of([other / mine for other, mine in zip(others, samples, strict=False)])
            for peer, others in peers.items()
            if runner.side == NATIVE.name
        }
        one = prepared[runner]
        return Time(
            runner.side,
            runner.name,
            Quartiles.of(samples),
            len(samples),
            one.work,
            one.scratch_bytes,
            ratios,
        )

    return LayerTimes(
        layer,
        case.notation,
        case.direction,
        case.batch,
        threads,
        case.flops,
        case.bytes,
        peak,
        bandwidth,
        tuple(
            time(runner, samples) for runner, samples in own.items() if runner.side != MACHINE.name
        ),
        failed,
        case.dtype,
        machine(),
    )


def _machine(times: dict[_Runner, list[float]], kind: str) -> Iterator[tuple[_Runner, list[float]]]:
    return (
        (runner, samples)
        for runner, samples in times.items()
        if runner.side == MACHINE.name and kind in runner.name
    )
