"""Makes rows and lines of what was measured, with the efficiency of each split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bestof.scale.measure import Row, shown


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
    widths = [max(len(row[column]) for row in table) for column in range(7)]
    return [
        "  ".join([*(row[c].rjust(widths[c]) for c in range(7)), row[7]]).rstrip() for row in table
    ]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
