"""Results of models, as plain values for tables, pictures and files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bestof.bench.model.job import Job

PROMISE = 0.98
"""The promise: no settled model is slower than this fraction of the speed without bestof."""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """One pass of one convolution: the median seconds of each alternative that was tried.

    The order is that of the catalogue, so PyTorch's own kernel comes first.
    """

    notation: str
    name: str
    chosen: str | None
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PeerTime:
    """One peer. `seconds` is the median a call, `least` the least time, `spread` half the distance
    between the quartiles.

    `ratio`: how many times faster than the best peer that is not bestof, the median over the
    rounds, with the quartiles `low` and `high`. `error`: the largest difference from PyTorch's
    result, in units of the root mean square of the logits, or relative to the loss. `settled`:
    whether trials had ended. `first_seconds`: of the first calls, if they were asked for.
    `peak_bytes`: memory of the process at the peak of a call, without what only others need;
    `prepare_bytes`: at the peak of its preparation. `reason` says why there is no time.
    """

    name: str
    label: str
    ours: bool
    seconds: float | None = None
    spread: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    error: float | None = None
    settled: bool | None = None
    prepare_seconds: float | None = None
    first_seconds: tuple[float, ...] = ()
    peak_bytes: int | None = None
    prepare_bytes: int | None = None
    reason: str | None = None
    least: float | None = None


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """One job by every peer.

    `best` is the fastest peer other than bestof. `machine` names the processor; empty in old files.
    `peak`: FLOP/s of the threads in float32, measured in the same run. `bound`: the seconds that
    the multiply-adds of the direct algorithms take at this peak. A kernel that multiplies less,
    such as Winograd's, may be faster. Both are None if the peak was not measured.
    """

    job: Job
    best: str | None
    peers: tuple[PeerTime, ...]
    layers: tuple[LayerTimes, ...] = ()
    machine: str = ""
    peak: float | None = None
    bound: float | None = None

    def has(self, names: Iterable[str]) -> bool:
        """Return whether each of these peers was measured, or has a reason why not."""
        return {peer.name for peer in self.peers}.issuperset(names)


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One job by one peer of bestof, compared with what the peer replaces.

    `seconds` and `replaced_seconds` are medians a call. `ratio` says how many times faster the peer
    is: the median over the rounds, with the quartiles `low` and `high`. `reason` says why there is
    no ratio.
    """

    job: Job
    name: str
    seconds: float | None = None
    replaced_seconds: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    settled: bool | None = None
    trials: int = 0
    error: float | None = None
    reason: str | None = None

    @property
    def below(self) -> bool:
        """Whether even the upper quartile breaks the promise."""
        return self.high is not None and self.high < PROMISE
