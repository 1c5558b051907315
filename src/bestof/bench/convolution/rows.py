"""Converts results to rows of a table, with the promised figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from bestof.bench.convolution.layers import LAYERS, SCALING_BATCH, SCALING_REACH, parse_case
from bestof.bench.convolution.peers.table import REFERENCE
from bestof.bench.convolution.result import LayerTimes, Row, Time
from bestof.bench.reach import Reach

_REFERENCE = REFERENCE.name


def rows_of(results: Sequence[LayerTimes]) -> list[Row]:
    """Return all algorithms of all results in the order of the results, the fastest of each
    first.
    """
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
                    time.seconds.spread * 1e3,
                    result.gflops(time),
                    _of_ceiling(result, time),
                    time.ratios,
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


def reaches(results: Sequence[LayerTimes]) -> list[Reach]:
    """Return every promise of `LAYERS` for which there are float32 results.

    These are the ratios to the reference peer with several threads, and the scaling.
    """
    results = [one for one in results if one.dtype == "float32"]
    rows = [row for row in rows_of(results) if row.best]
    return [*_ratio_reaches(rows), *_median_reaches(results), *_scaling_reach(rows)]


def _ratio_reaches(rows: Sequence[Row]) -> Iterator[Reach]:
    for row in rows:
        ratio = row.ratios.get(_REFERENCE)
        if row.reach is not None and ratio is not None:
            what = f"{row.layer}, {row.direction}, batch {row.batch}"
            yield Reach(what, row.reach, ratio.middle, ratio.low, ratio.high)


def _median_reaches(results: Sequence[LayerTimes]) -> Iterator[Reach]:
    for group in LAYERS:
        notations = {parse_case(notation).notation for notation in group.notations}
        for (direction, batch), value in group.median_reach.items():
            bests = [
                result.best
                for result in results
                if result.notation in notations
                and (result.direction, result.batch) == (direction, batch)
                and result.threads > 1
            ]
            ratios = [one.ratios[_REFERENCE].middle for one in bests if _REFERENCE in one.ratios]
            if ratios:
                what = f"{group.title}, {direction}, batch {batch}, median"
                yield Reach(what, value, median(ratios), min(ratios), max(ratios))


def _scaling_reach(rows: Sequence[Row]) -> Iterator[Reach]:
    scaling = [
        row.scaling
        for row in rows
        if row.scaling is not None and row.batch == SCALING_BATCH and row.threads == 2
    ]
    if scaling:
        what = f"1 to 2 threads, batch {SCALING_BATCH}, the least of {len(scaling)}"
        yield Reach(what, SCALING_REACH, min(scaling), min(scaling), max(scaling))
