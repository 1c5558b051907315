"""Makes rows and lines of what was measured: of splits, and of a plan that is served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bestof.scale.measure import Row, shown
from bestof.scale.serving import Setting
from bestof.scale.split import Split


def records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a record for each split, in the order of ranks and threads.

    strong: the time of one rank with as many threads, over the number of ranks times the time of
    all; the global batch is the same. weak: the time of one rank alone at the batch of a rank, over
    the time of all.
    """
    single = {row.split.threads: row.seconds for row in rows if len(row.split.ranks) == 1}
    found = []
    for row in sorted(rows, key=lambda one: (len(one.split.ranks), one.split.threads)):
        ranks, base = len(row.split.ranks), single.get(row.split.threads)
        timed = row.seconds is not None
        found.append(
            {
                "ranks": ranks,
                "threads": row.split.threads,
                "batch": row.split.batch,
                "processors": row.split.pins(),
                "seconds": row.seconds,
                "strong": base / (ranks * row.seconds) if row.seconds and base else None,
                "weak": row.alone / row.seconds
                if row.seconds and row.alone and row.split.batch is not None
                else None,
                "memory": row.memory,
                "why": "" if timed else row.why,
            }
        )
    return found


def lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return the records as the lines of a table."""
    table = [("ranks", "threads", "batch", "s/step", "strong", "weak", "MiB/rank", "processors")]
    for one in found:
        memory = None if one["memory"] is None else one["memory"] / 2**20
        table.append(
            (
                str(one["ranks"]),
                str(one["threads"]),
                "-" if one["batch"] is None else str(one["batch"]),
                "-" if one["seconds"] is None else shown(one["seconds"]),
                _text(one["strong"], ".0%"),
                _text(one["weak"], ".0%"),
                _text(memory, ".0f"),
                one["why"] or one["processors"],
            )
        )
    return _aligned(table)


def serving_records(rows: Sequence[Setting], bound: float | None) -> list[dict[str, Any]]:
    """Return a record for each setting, in the order of batch, instances and threads.

    Times are in seconds. `within`: whether the setting keeps the bound; None without a time or a
    bound.
    """
    ordered = sorted(
        rows, key=lambda one: (one.split.batch, len(one.split.ranks), one.split.threads)
    )
    return [
        {
            "instances": len(row.split.ranks),
            "threads": row.split.threads,
            "batch": row.split.batch,
            "processors": row.split.pins(),
            "throughput": row.throughput,
            "p50": row.p50,
            "p99": row.p99,
            "calls": row.calls,
            "within": None if bound is None or row.p99 is None else row.keeps(bound),
            "memory": row.memory,
            "why": row.why,
        }
        for row in ordered
    ]


_HEADS = (
    *("instances", "threads", "batch", "samples/s", "p50 ms", "p99 ms", "bound"),
    *("MiB/instance", "processors"),
)


def serving_lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return the records as the lines of a table."""
    table: list[Sequence[str]] = [_HEADS]
    for one in found:
        p50, p99 = (None if one[name] is None else 1e3 * one[name] for name in ("p50", "p99"))
        memory = None if one["memory"] is None else one["memory"] / 2**20
        table.append(
            (
                *(str(one[name]) for name in ("instances", "threads", "batch")),
                _text(one["throughput"], ",.1f"),
                _text(p50, ".4g"),
                _text(p99, ".4g"),
                {None: "-", True: "within", False: "beyond"}[one["within"]],
                _text(memory, ".0f"),
                one["why"] or one["processors"],
            )
        )
    return _aligned(table)


def start_lines(split: Split) -> list[str]:
    """Return a line for each instance that starts a server on its processors and threads."""
    threads = split.threads
    return [
        f"OMP_NUM_THREADS={threads} MKL_NUM_THREADS={threads} "
        f"taskset --cpu-list {processors} python SERVER"
        for processors in split.pins().split("/")
    ]


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table. All columns but the last end at the same place."""
    last = len(table[0]) - 1
    widths = [max(len(row[column]) for row in table) for column in range(last)]
    return [
        "  ".join([*(row[c].rjust(widths[c]) for c in range(last)), row[last]]).rstrip()
        for row in table
    ]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
