"""Stacked bars: where the time of several things goes, by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; `parts` are the seconds of each kind, drawn from left to right in the order of the
    legend.
    """

    label: str
    parts: dict[str, float]


# Colours that are told apart in grey and by the colour-blind; what is not named is grey.
_COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#6a3d9a"),
    *("#b15928", "#1b9e77"),
)
OTHERS = "others"


def draw_stacked_bars(
    bars: Sequence[Bar], title: str, path: Path, unit: str = "ms a step", kinds: int = 8
) -> None:
    """Draw to `path`, in the format of its ending. Needs matplotlib.

    The `kinds` that take longest have a colour each; the rest is summed as others.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415  optional, and slow to import

    totals: dict[str, float] = {}
    for bar in bars:
        for kind, seconds in bar.parts.items():
            totals[kind] = totals.get(kind, 0.0) + seconds
    shown = sorted((kind for kind in totals if kind != OTHERS), key=lambda kind: -totals[kind])[
        :kinds
    ]
    figure = Figure(figsize=(9.0, 1.6 + 0.34 * len(bars)), dpi=150, layout="constrained")
    axes = figure.subplots()
    places = range(len(bars))
    left = [0.0] * len(bars)
    for number, kind in enumerate([*shown, OTHERS]):
        widths = [
            bar.parts.get(kind, 0.0)
            if kind != OTHERS
            else sum(seconds for name, seconds in bar.parts.items() if name not in shown)
            for bar in bars
        ]
        if not any(widths):
            continue
        colour = "#bbbbbb" if kind == OTHERS else _COLOURS[number % len(_COLOURS)]
        axes.barh(
            places, [1e3 * one for one in widths], left=left, color=colour, label=kind, height=0.72
        )
        left = [one + 1e3 * width for one, width in zip(left, widths, strict=True)]
    for place, total in zip(places, left, strict=True):
        axes.text(total, place, f" {total:.4g}", va="center", fontsize=7)
    axes.set_yticks(places, [bar.label for bar in bars], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.set_xlabel(unit, fontsize=9)
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(path)
