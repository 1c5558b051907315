"""Measure matrix products by all peers in turn, round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from time import sleep

from bestof.bench.convolution.peer_worker import Prepared
from bestof.bench.convolution.side import Side
from bestof.bench.product.case import Case
from bestof.bench.product.peers.table import MACHINE, NATIVE, PEERS, REFERENCES
from bestof.bench.quartiles import Quartiles
from bestof.errors import BenchError, WrongResult

_WORKER = "bestof.bench.product.peer_worker"

# Seconds until the threads of another side's pool stop spinning. Those of OpenBLAS spin for 2^26
# cycles, which is 27 ms at 2.5 GHz. After 20 ms, the peak of two threads was measured as 86 instead
# of 285 GFLOP/s.
_PAUSE = 0.06

# The largest difference between the sides, relative to the rms: ten times the promised error of
# 16,384 terms.
_TOLERANCE = 5e-5


@dataclass(frozen=True, slots=True)
class ProductTime:
    """One run of one side. `ratio`: how many times longer the better peer of PyTorch took, over the
    pairs of a round; None for a peer. `of_peak`: FLOP/s over the largest peak that was measured
    with as many threads, whatever the product. (All rounds of one product may be disturbed.)
    """

    case: str
    threads: int
    side: str
    run: str
    seconds: float
    gflops: float
    of_peak: float
    of_ceiling: float
    ratio: Quartiles | None


def measure(
    cases: Sequence[Case],
    threads: Sequence[int],
    *,
    rounds: int,
    seconds: float,
    tell: Callable[[str], None],
    pause: Callable[[float], None] = sleep,
) -> list[ProductTime]:
    """Measure every case with each number of threads; `tell` gets a line for each step.

    In a round, all runs follow each other, each for `seconds`: a slow minute of the machine slows
    all of them. A peer that is not there is left out. Raises WrongResult if a side disagrees.
    """
    results = []
    for count in threads:
        with ExitStack() as stack:
            sides = _start(count, stack, tell)
            measured = []
            for number, case in enumerate(cases, 1):
                tell(f"{number}/{len(cases)} {case}, threads {count}")
                if count > 1:
                    pause(_PAUSE)
                measured.append(_measure(case, count, sides, rounds, seconds, pause))
        peak = max(one.peak for one in measured)
        bandwidth = max(one.bandwidth for one in measured)
        for case, one in zip(cases, measured, strict=True):
            results += _product_times(case, count, one.times, peak, bandwidth)
    return results


@dataclass(frozen=True, slots=True)
class _Measured:
    """The times of one product by side and run, the median of each round. FLOP/s and bytes/s that
    the machine reached in the same rounds.
    """

    times: dict[tuple[str, str], list[float]]
    peak: float
    bandwidth: float


def _start(threads: int, stack: ExitStack, tell: Callable[[str], None]) -> list[Side]:
    sides = []
    for peer in (MACHINE, NATIVE, *PEERS):
        try:
            sides.append(stack.enter_context(Side(peer, threads, _WORKER)))
        except BenchError as error:
            if peer in (MACHINE, NATIVE):
                raise
            tell(f"without {error}")
    tell(f"measuring {', '.join(side.version for side in sides)}")
    return sides


def _measure(
    case: Case,
    threads: int,
    sides: Sequence[Side],
    rounds: int,
    seconds: float,
    pause: Callable[[float], None],
) -> _Measured:
    runs = {
        (side.name, name): (side, one) for side in sides for name, one in side.prepare(case).items()
    }
    _compare(case, {key: one for key, (_, one) in runs.items() if key[0] != MACHINE.name})
    times: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for _ in range(rounds):
        for key, (side, _one) in runs.items():
            if threads > 1:
                pause(_PAUSE)
            times[key].append(median(side.time(key[1], seconds)))
    rates = {
        kind: max(
            (runs[key][1].work or 0.0) / min(samples)
            for key, samples in times.items()
            if key[0] == MACHINE.name and kind in key[1]
        )
        for kind in ("multiply-add", "copy")
    }
    return _Measured(times, rates["multiply-add"], rates["copy"])


def _product_times(
    case: Case,
    threads: int,
    times: dict[tuple[str, str], list[float]],
    peak: float,
    bandwidth: float,
) -> list[ProductTime]:
    ceiling = max(case.flops / peak, case.bytes / bandwidth)
    # The better one of what PyTorch has, in each round.
    references = {peer.name for peer in REFERENCES}
    best = [
        min(pair)
        for pair in zip(*(row for key, row in times.items() if key[0] in references), strict=True)
    ]

    def time(side: str, run: str, samples: list[float]) -> ProductTime:
        middle = median(samples)
        pairs = [other / mine for other, mine in zip(best, samples, strict=False)]
        return ProductTime(
            str(case),
            threads,
            side,
            run,
            middle,
            case.flops / middle / 1e9,
            case.flops / middle / peak,
            ceiling / middle,
            Quartiles.of(pairs) if side == NATIVE.name and pairs else None,
        )

    return [
        time(side, run, samples) for (side, run), samples in times.items() if side != MACHINE.name
    ]


def _compare(case: Case, runs: dict[tuple[str, str], Prepared]) -> None:
    """Raise WrongResult if a side disagrees with the others: a fast wrong one must not win."""
    reference = next(iter(runs.values())).samples
    rms = (sum(value * value for value in reference) / len(reference)) ** 0.5
    for (side, name), one in runs.items():
        worst = max(abs(a - b) for a, b in zip(one.samples, reference, strict=True))
        if not worst <= _TOLERANCE * rms:
            raise WrongResult(
                f"{case}: {side} {name} is {worst / rms:.1e} of the rms away from the others; "
                f"{_TOLERANCE:.0e} is allowed"
            )
