"""The tables and the roofline of `bestof bench conv --peers`."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TextIO

from bestof.bench.convolution.peers.table import NATIVE, PEERS, REFERENCE, peer_named
from bestof.bench.convolution.result import LayerTimes, Row
from bestof.bench.quartiles import Quartiles
from bestof.view.bench.table import Table
from bestof.view.quantity import plural
from bestof.view.roofline import Point, Roof, draw_roofline

_FIRST = ("", "layer", "algorithm", "ms", "spread", "GFLOP/s", "ceiling")


def peer_tables(rows: Sequence[Row]) -> list[Table]:
    """Return a table for each pass, batch and number of threads; a star marks the best native
    row.
    """
    tables = []
    for key in dict.fromkeys((row.direction, row.batch, row.threads) for row in rows):
        direction, batch, threads = key
        own = [row for row in rows if (row.direction, row.batch, row.threads) == key]
        title = f"{direction}, batch {batch}, {plural(threads, 'thread')}"
        tables.append(_table(title, own))
    return tables


def _table(title: str, rows: Sequence[Row]) -> Table:
    # A peer has no column in the tables of cases in which it takes no part.
    shown = [
        peer
        for peer in PEERS
        if "float32" in peer.dtypes or any(peer.name in row.ratios for row in rows)
    ]
    headings = [*_FIRST]
    for peer in shown:
        headings += [peer.label, "reach"] if peer == REFERENCE else [peer.label]
    names = [peer.name for peer in shown]
    return Table(title, (*headings, "scaling"), [_cells(row, names) for row in rows], left=3)


def _cells(row: Row, peers: Sequence[str]) -> tuple[str, ...]:
    cells = [
        "*" if row.best else "",
        row.layer,
        row.algorithm,
        f"{row.milliseconds:.3f}",
        f"± {row.spread:.3f}",
        f"{row.gflops:.0f}",
        "" if row.of_ceiling is None else f"{row.of_ceiling:.0%}",
    ]
    for name in peers:
        cells.append(_ratio(row.ratios.get(name)))
        if name == REFERENCE.name:
            cells.append("" if row.reach is None else f"{row.reach:.2f}")
    return (*cells, "" if row.scaling is None else f"{row.scaling:.2f}")


def _ratio(value: Quartiles | None) -> str:
    return "" if value is None else f"{value.middle:.2f} ({value.low:.2f} to {value.high:.2f})"


def write_rows(rows: Sequence[Row], stream: TextIO) -> None:
    """Write the rows as CSV; the ratio to a peer has three columns: middle, low and high."""
    columns: list[str] = []
    for field in fields(Row):
        if field.name == "ratios":
            columns += [name for peer in PEERS for name in _ratio_columns(peer.name)]
        else:
            columns.append(field.name)
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = {column: getattr(row, column) for column in columns if hasattr(row, column)}
        for name, value in row.ratios.items():
            quartiles = (value.middle, value.low, value.high)
            cells |= dict(zip(_ratio_columns(name), quartiles, strict=True))
        writer.writerow(cells)


def _ratio_columns(peer: str) -> tuple[str, str, str]:
    return peer, f"{peer}_low", f"{peer}_high"


def draw_peers(results: Sequence[LayerTimes], titles: Mapping[str, str], path: Path) -> None:
    """Draw a roofline of these results, which are of one pass, batch and number of threads.

    `titles` maps the notation of a layer to the title of its panel.
    """
    points = []
    for one in results:
        panel = titles.get(one.notation, "layers that were asked for")
        fastest = {NATIVE.name: one.best}
        for time in one.times:
            fastest.setdefault(time.side, time)
        for side, time in fastest.items():
            rate = one.flops / time.seconds.middle
            series = peer_named(side).label
            points.append(Point(panel, series, one.layer, one.flops / one.bytes, rate))
    # The most that was measured. A ceiling from a slow moment of the machine would be too low.
    peak = max(one.peak for one in results)
    bandwidth = max(one.bandwidth for one in results)
    first = results[0]
    machines = dict.fromkeys(one.machine or "processor not noted" for one in results)
    title = (
        f"Convolutions, {first.direction}, batch {first.batch}, "
        f"{plural(first.threads, 'thread')}, {first.dtype}\n"
        f"{'; '.join(machines)}, peak {peak / 1e9:.0f} GFLOP/s"
    )
    draw_roofline(points, Roof(peak, bandwidth, (("Winograd F(4)", 4.0),)), title, path)
