"""Measurements of convolutions, as plain values that can be written to a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bestof.bench.convolution.peers.table import NATIVE, REFERENCE
from bestof.bench.quartiles import Quartiles


@dataclass(frozen=True, slots=True)
class Time:
    """One algorithm of one side.

    `seconds` is the time of a call, over the rounds. `ratios` tells for each peer how many times
    longer it took, over the pairs of a round; empty for the peers themselves. `work` is the FLOPs
    that the algorithm performs, None for a peer. `rounds`: a native algorithm that takes more than
    twice as long as another is measured in the first two only.
    """

    side: str
    algorithm: str
    seconds: Quartiles
    rounds: int
    work: float | None
    scratch_bytes: int | None
    ratios: dict[str, Quartiles]


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """One pass of one layer.

    `flops` and `bytes` are those of `Case`. `peak` and `bandwidth` are what multiply-adds and a
    copy reached in the best of these rounds: FLOP/s, and bytes read plus written a second. `failed`
    says why a side has no time. `machine` names the processor; empty in old files.
    """

    layer: str
    notation: str
    direction: str
    batch: int
    threads: int
    flops: float
    bytes: float
    peak: float
    bandwidth: float
    times: tuple[Time, ...]
    failed: dict[str, str]
    dtype: str = "float32"  # as `Case` has it
    machine: str = ""

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> LayerTimes:
        """Return the result that `dataclasses.asdict` wrote, after a way through JSON."""
        times = tuple(
            Time(
                **{
                    **one,
                    "seconds": Quartiles(**one["seconds"]),
                    "ratios": {peer: Quartiles(**ratio) for peer, ratio in one["ratios"].items()},
                }
            )
            for one in fields["times"]
        )
        return cls(**{**fields, "times": times})

    @property
    def key(self) -> tuple[str, str, int, str, int]:
        """What distinguishes this measurement from others."""
        return self.notation, self.direction, self.batch, self.dtype, self.threads

    @property
    def best(self) -> Time:
        """The fastest native algorithm, of those that were measured in all rounds.

        If all have a ratio to the reference peer, the largest ratio wins. A ratio compares times of
        the same round, so a slow moment of the machine affects both.
        """
        own = [one for one in self.times if one.side == NATIVE.name]
        rounds = max(one.rounds for one in own)
        ended = [one for one in own if one.rounds == rounds]
        if all(REFERENCE.name in one.ratios for one in ended):
            return max(ended, key=lambda one: one.ratios[REFERENCE.name].middle)
        return min(ended, key=lambda one: one.seconds.middle)

    def gflops(self, time: Time) -> float:
        """Return the FLOPs of the direct algorithm divided by the time, in 1e9 a second.

        This compares all peers. Winograd's algorithms may exceed the peak.
        """
        return self.flops / time.seconds.middle / 1e9

    def ceiling(self, time: Time) -> float:
        """Return the least seconds that the machine allows this algorithm.

        These are its own FLOPs at the peak, or its operands at the bandwidth of a copy.
        """
        return max((time.work or self.flops) / self.peak, self.bytes / self.bandwidth)


@dataclass(frozen=True, slots=True)
class Row:
    """One algorithm of one side on one layer, as tables show it.

    `milliseconds` a call, `spread` half the distance between the quartiles. `gflops`: FLOPs of the
    direct algorithm over the time. `of_ceiling`: the least time that the machine allows the
    algorithm, over its time; None for a peer. `ratios`: how many times longer each peer took; empty
    for a peer. `reach`: the promised ratio to the reference peer, for the best row of a layer in
    float32. `scaling`: time with one thread over that with these, for the best of both.
    """

    layer: str
    direction: str
    batch: int
    threads: int
    side: str
    algorithm: str
    best: bool
    milliseconds: float
    spread: float
    gflops: float
    of_ceiling: float | None
    ratios: Mapping[str, Quartiles]
    reach: float | None
    scaling: float | None
