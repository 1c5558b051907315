"""Draws stacked bars: how the time of several things divides, by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bestof.view.saved_figure import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. `parts` are the seconds of each kind, in the order of the legend from left to
    right."""

    label: str
    parts: dict[str, float]


# Colours that stay distinct in grey and for the colour-blind. Other kinds are grey.
_COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#6a3d9a"),
    *("#b15928", "#1b9e77"),
)
OTHERS = "others"


def draw_stacked_bars(
    panels: Sequence[Sequence[Bar]],
    title: str,
    path: Path,
    unit: str = "ms a step",
    kinds: int = 8,
) -> None:
    """Draw to `path`, whose ending gives the format. Needs matplotlib.

    Panels stand one above the other, each with its own scale. The `kinds` that take longest have a
    colour each. The rest is summed as others.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415  optional, and slow to import
    from matplotlib.patches import Patch  # noqa: PLC0415  as above

    panels = [bars for bars in panels if bars]
    totals: dict[str, float] = {}
    for bar in (bar for bars in panels for bar in bars):
        for kind, seconds in bar.parts.items():
            totals[kind] = totals.get(kind, 0.0) + seconds
    shown = sorted(totals, key=lambda kind: -totals[kind])[:kinds]
    rows = [len(bars) for bars in panels]
    height = 1.4 + 0.3 * sum(rows) + 0.5 * len(rows)
    figure = Figure(figsize=(9.0, height), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=10)
    grid = figure.subplots(len(rows), 1, squeeze=False, height_ratios=[one + 1 for one in rows])
    for axes, bars in zip(grid.flat, panels, strict=True):
        _draw(axes, bars, shown)
    grid.flat[-1].set_xlabel(unit, fontsize=9)
    handles = [
        Patch(color=_colour(number, kind), label=kind)
        for number, kind in enumerate([*shown, OTHERS])
    ]
    grid.flat[0].legend(
        handles=handles, fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False
    )
    save_figure(figure, path)


def _draw(axes: Axes, bars: Sequence[Bar], shown: Sequence[str]) -> None:
    places = range(len(bars))
    left = [0.0] * len(bars)
    for number, kind in enumerate([*shown, OTHERS]):
        widths = [
            1e3
            * (
                sum(seconds for name, seconds in bar.parts.items() if name not in shown)
                if kind == OTHERS
                else bar.parts.get(kind, 0.0)
            )
            for bar in bars
        ]
        axes.barh(places, widths, left=left, color=_colour(number, kind), height=0.72)
        left = [one + width for one, width in zip(left, widths, strict=True)]
    for place, total in zip(places, left, strict=True):
        text = f"{total:,.0f}" if total >= 100 else f"{total:.3g}"
        axes.text(total, place, f" {text}", va="center", fontsize=7)
    axes.set_yticks(places, [bar.label for bar in bars], fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.invert_yaxis()
    # A part of no width ends at the total, and a margin would begin there, below the number.
    axes.set_xlim(0.0, 1.1 * max(left) or 1.0)
    axes.spines[["top", "right"]].set_visible(False)


def _colour(number: int, kind: str = "") -> str:
    return "#bbbbbb" if kind == OTHERS else _COLOURS[number % len(_COLOURS)]
