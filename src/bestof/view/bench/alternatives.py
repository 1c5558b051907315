"""The tables of `bestof bench conv`: every alternative, pass by pass, and what wins where."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.bench.convolution.pass_times import AlternativeTime, PassTimes
from bestof.view.bench.table import Table
from bestof.view.quantity import plural, ratio

_HEADINGS = ("", "alternative", "ms", "spread", "ratio")


def alternatives_table(result: PassTimes) -> Table:
    """Return the table of one pass; a star marks the alternative that would be chosen."""
    title = (
        f"{result.name} of {result.problem}: {result.flops / 1e9:.3g} GFLOP, "
        f"{plural(result.threads, 'thread')}"
    )
    other = [row.name for row in result.alternatives if row.seconds is None and not row.reason]
    return Table(
        title,
        _HEADINGS,
        [_cells(row) for row in result.alternatives if row.name not in other],
        below=f"not applicable: {plural(len(other), 'other')}, named by --json" if other else "",
    )


def winners_table(results: Sequence[PassTimes]) -> Table:
    """Return a row a convolution: what each pass would choose, and how many times faster it is."""
    passes = tuple(dict.fromkeys(one.name for one in results))
    problems = dict.fromkeys(one.problem.split()[0] for one in results)
    won = {(one.problem.split()[0], one.name): _winner(one) for one in results}
    return Table(
        "what to choose, and how many times faster it is than PyTorch's own kernel",
        ("convolution", *passes),
        [(problem, *(won[problem, name] for name in passes)) for problem in problems],
        left=1,
    )


def _winner(result: PassTimes) -> str:
    (row,) = (one for one in result.alternatives if one.chosen)
    return f"{row.name}, {ratio(row.ratio)}"


def _cells(row: AlternativeTime) -> tuple[str, ...]:
    if row.seconds is None:
        return "", row.name, f"failed: {row.reason}", "", ""
    spread = "" if row.spread is None else f"± {row.spread * 1e3:.3f}"
    return "*" if row.chosen else "", row.name, f"{row.seconds * 1e3:.3f}", spread, ratio(row.ratio)
