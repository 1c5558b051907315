"""The measurements as rows of a table, with what each layer was to reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bestof.bench.convolution.layers import LAYERS, SCALING_BATCH, SCALING_REACH, parse_case
from bestof.bench.convolution.result import LayerTimes, Quartiles, Time

_ONEDNN, _ONEDNN_BF16, _NCNN = "onednn", "onednn_bf16", "ncnn"


@dataclass(frozen=True, slots=True)
class Row:
    """One algorithm of one side on one layer.

    milliseconds: a call, with half the distance between the quartiles as `spread`. gflops: FLOPs of the direct
    algorithm over the time. of_ceiling: the least time that the machine allows this algorithm, over its time; None for
    a peer. onednn, onednn_bf16, ncnn: how many times longer these took; None for a peer, and where they did not run.
    reach: of `onednn`, for the best row of a layer in float32. scaling: time with one thread over that with these, for
    the best of both.
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
    onednn: Quartiles | None
    onednn_bf16: Quartiles | None
    ncnn: Quartiles | None
    reach: float | None
    scaling: float | None


def rows_of(results: Sequence[LayerTimes]) -> list[Row]:
    """All algorithms of all results, the fastest of each layer first, in the order of the results."""
    single = {one.key[:-1]: one for one in results if one.threads == 1}
    rows = []
    for result in results:
        alone = single.get(result.key[:-1])
        for time in sorted(result.times, key=lambda one: one.seconds.middle):
            best = time == result.best
            rows.append(
                Row(
                    result.layer,
                    result.direction,
                    result.batch,
                    result.threads,
                    time.side,
                    time.algorithm,
                    best,
                    time.seconds.middle * 1e3,
                    (time.seconds.high - time.seconds.low) * 500,
                    result.gflops(time),
                    _of_ceiling(result, time),
                    time.ratios.get(_ONEDNN),
                    time.ratios.get(_ONEDNN_BF16),
                    time.ratios.get(_NCNN),
                    _reach(result) if best and result.threads > 1 else None,
                    alone.best.seconds.middle / time.seconds.middle
                    if best and alone and alone != result
                    else None,
                )
            )
    return rows


def _of_ceiling(result: LayerTimes, time: Time) -> float | None:
    return None if time.work is None else result.ceiling(time) / time.seconds.middle


def _reach(result: LayerTimes) -> float | None:
    if result.dtype != "float32":
        return None
    for group in LAYERS:
        values = group.reach.get((result.direction, result.batch), ())
        for notation, value in zip(group.notations, values, strict=False):
            if parse_case(notation).notation == result.notation:
                return value
    return None


@dataclass(frozen=True, slots=True)
class Reach:
    """One figure that was to be reached, and what was: `low` to `high` are the quartiles of a layer, or the extremes of
    the layers that a median is taken over."""

    what: str
    reach: float
    reached: Quartiles

    @property
    def met(self) -> bool:
        """Whether it holds; NaN does not."""
        return self.reached.middle >= self.reach


def reaches(results: Sequence[LayerTimes]) -> list[Reach]:
    """Every promise of `LAYERS` that the results speak to: the ratios with more than one thread, and the scaling."""
    results = [one for one in results if one.dtype == "float32"]
    rows = [row for row in rows_of(results) if row.best]
    found = [
        Reach(f"{row.layer}, {row.direction}, batch {row.batch}", row.reach, row.onednn)
        for row in rows
        if row.reach is not None and row.onednn is not None
    ]
    for group in LAYERS:
        notations = {parse_case(notation).notation for notation in group.notations}
        for (direction, batch), value in group.median_reach.items():
            ratios = [
                result.best.ratios[_ONEDNN].middle
                for result in results
                if result.notation in notations
                and (result.direction, result.batch) == (direction, batch)
                and result.threads > 1
                and _ONEDNN in result.best.ratios
            ]
            if ratios:
                middle = Quartiles(min(ratios), median(ratios), max(ratios))
                found.append(
                    Reach(f"{group.title}, {direction}, batch {batch}, median", value, middle)
                )
    scaling = [
        row.scaling
        for row in rows
        if row.scaling is not None and row.batch == SCALING_BATCH and row.threads == 2
    ]
    if scaling:
        middle = Quartiles(min(scaling), min(scaling), max(scaling))
        found.append(
            Reach(
                f"1 to 2 threads, batch {SCALING_BATCH}, the least of {len(scaling)}",
                SCALING_REACH,
                middle,
            )
        )
    return found
