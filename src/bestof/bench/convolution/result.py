"""What was measured, as values that survive a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Quartiles:
    """The middle of some numbers, and the quartiles around it."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True, slots=True)
class Time:
    """One algorithm of one side. `seconds` a call, over the rounds. `ratios` says for each peer how many times longer
    it took, over the pairs of a round; empty for the peers themselves. `work`: FLOPs that it performs, None for a peer.
    `rounds`: a native algorithm that takes more than twice as long as another is measured in the first two only."""

    side: str
    algorithm: str
    seconds: Quartiles
    rounds: int
    work: float | None
    scratch_bytes: int | None
    ratios: dict[str, Quartiles]


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """One pass of one layer. `flops` and `bytes` as `Case` has them; `peak` and `bandwidth` are what multiply-adds and
    a copy reached in the best of these rounds: FLOP/s, and bytes read plus written a second. `failed`: why a side has
    none."""

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

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> LayerTimes:
        """What `dataclasses.asdict` made of one."""
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
        """What tells two measurements apart."""
        return self.notation, self.direction, self.batch, self.dtype, self.threads

    @property
    def best(self) -> Time:
        """The fastest of the native algorithms that were measured to the end: by the ratios to oneDNN where there are
        some, for those compare times of one round, and a slow minute of the machine is one for both."""
        own = [one for one in self.times if one.side == "native"]
        rounds = max(one.rounds for one in own)
        ended = [one for one in own if one.rounds == rounds]
        if all("onednn" in one.ratios for one in ended):
            return max(ended, key=lambda one: one.ratios["onednn"].middle)
        return min(ended, key=lambda one: one.seconds.middle)

    def gflops(self, time: Time) -> float:
        """FLOPs of the direct algorithm over the time: what all sides can be compared by, and Winograd's may exceed the
        peak."""
        return self.flops / time.seconds.middle / 1e9

    def ceiling(self, time: Time) -> float:
        """The least seconds that the machine allows this algorithm: its own FLOPs at the peak, or its operands at the
        bandwidth of a copy."""
        return max((time.work or self.flops) / self.peak, self.bytes / self.bandwidth)
