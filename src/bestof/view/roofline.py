"""Draws rooflines: kernels below the two ceilings of a machine, multiply-adds and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bestof.view.saved_figure import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Point:
    """One kernel on one problem.

    `intensity` is FLOPs per byte that must be moved, and `rate` is FLOPs a second. `label` names
    the problem, `panel` the kind of problem, `series` the kernel.
    """

    panel: str
    series: str
    label: str
    intensity: float
    rate: float


@dataclass(frozen=True, slots=True)
class Roof:
    """The ceilings of a machine: `peak` in FLOPs a second, `bandwidth` in bytes a second.

    `savings` are names of algorithms with fewer multiplications, and the factors by which they
    raise the peak.
    """

    peak: float
    bandwidth: float
    savings: tuple[tuple[str, float], ...] = ()


# Colours that stay distinct in grey and for the colour-blind, each with its own shape.
_MARKS = (
    *(("#0072b2", "o"), ("#d55e00", "s"), ("#009e73", "^"), ("#cc79a7", "D")),
    *(("#56b4e9", "v"), ("#e69f00", "P"), ("#000000", "X"), ("#999999", "*")),
)

# The background of a label, which hides lines behind it.
_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.4, "alpha": 0.85}

_TICKS = tuple(step * 10**power for power in range(-1, 5) for step in (1, 2, 5))


def draw_roofline(points: Sequence[Point], roof: Roof, title: str, path: Path) -> None:
    """Draw a panel for each kind of problem. The ending of `path` gives the format.

    The panels stand one above the other, so that their labels can be read at the width of a page.
    Needs matplotlib.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415  optional, and slow to import

    panels = list(dict.fromkeys(point.panel for point in points))
    series = list(dict.fromkeys(point.series for point in points))
    figure = Figure(figsize=(7.5, 0.8 + 3.4 * len(panels)), dpi=150, layout="constrained")
    figure.suptitle(title, fontsize=12)
    grid = figure.subplots(len(panels), squeeze=False).flat
    for axes, panel in zip(grid, panels, strict=True):
        _draw_panel(axes, [point for point in points if point.panel == panel], series, roof)
        axes.set_title(panel, fontsize=10)
    figure.supylabel("GFLOP/s of the direct algorithm", fontsize=10)
    grid[len(panels) - 1].set_xlabel(
        "FLOPs of the direct algorithm a byte of input, weights and output", fontsize=10
    )
    handles, names = grid[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=8)
    save_figure(figure, path)


def _draw_panel(axes: Axes, points: Sequence[Point], series: Sequence[str], roof: Roof) -> None:
    left = 0.6 * min(point.intensity for point in points)
    right = 1.7 * max(point.intensity for point in points)
    # Draw the savings only if some kernel is above the plain peak. A 1x1 never is.
    savings = [("multiply-add", 1.0), *roof.savings]
    if max(point.rate for point in points) < 1.2 * roof.peak:
        savings = savings[:1]
    fastest = max(point.rate for point in points)
    highest = max(roof.peak * savings[-1][1], fastest)
    lowest = min([roof.peak, *(point.rate for point in points)])
    bottom = 0.55 * lowest
    # The name above the fastest point takes 3/8 of the panel's height.
    limits = bottom, max(2.4 * highest, fastest * (fastest / bottom) ** 0.6)
    for name, saving in savings:
        peak = roof.peak * saving
        ridge = min(max(left, peak / roof.bandwidth), right)
        axes.plot(
            [left, ridge, right],
            [min(peak, edge * roof.bandwidth) for edge in (left, ridge, right)],
            color="#222222" if saving == 1.0 else "#999999",
            linewidth=1.5 if saving == 1.0 else 1.0,
            linestyle="-" if saving == 1.0 else "--",
            zorder=1,
        )
        axes.annotate(  # beside the panel, where no name of a problem is
            f"{name}\n{peak / 1e9:,.0f}",
            (1.0, peak),
            xycoords=axes.get_yaxis_transform(),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
            color="#444444",
            annotation_clip=False,
        )
    _label(axes, points, right / left)
    for name, (colour, shape) in zip(series, _MARKS, strict=False):
        own = [point for point in points if point.series == name]
        axes.scatter(
            [point.intensity for point in own],
            [point.rate for point in own],
            s=26,
            color=colour,
            marker=shape,
            label=name,
            zorder=3,
            edgecolors="white",
            linewidths=0.5,
        )
    if limits[0] < left * roof.bandwidth < roof.peak:
        text = f"copy: {roof.bandwidth / 1e9:.1f} GB/s"
        axes.text(
            left * 1.03,
            max(left * roof.bandwidth * 0.93, limits[0]),
            text,
            va="top",
            fontsize=7,
            color="#444444",
        )
    _draw_axes(axes, (left, right), limits)


def _draw_axes(axes: Axes, across: tuple[float, float], limits: tuple[float, float]) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*across)
    axes.set_ylim(*limits)
    axes.set_xticks([tick for tick in _TICKS if across[0] < tick < across[1]], minor=False)
    axes.set_yticks(
        [tick * 1e9 for tick in _TICKS if limits[0] < tick * 1e9 < limits[1]], minor=False
    )
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1e9:g}")
    axes.minorticks_off()
    axes.grid(True, which="major", color="#e8e8e8", linewidth=0.6)


def _label(axes: Axes, points: Sequence[Point], span: float) -> None:
    """Write the names of the problems above their highest kernels. Equal intensities share a
    label."""
    by_place: dict[float, list[Point]] = {}
    for point in sorted(points, key=lambda point: point.intensity):
        by_place.setdefault(float(f"{point.intensity:.3g}"), []).append(point)
    apart = span ** (1 / 36)  # 36 lines of text fit side by side
    place = 0.0
    for intensity, own in by_place.items():
        low, high = min(point.rate for point in own), max(point.rate for point in own)
        axes.vlines(intensity, low, high, color="#bbbbbb", linewidth=0.8, zorder=2)
        for label in dict.fromkeys(point.label for point in own):
            place = max(intensity, place * apart)
            axes.text(
                place,
                high * 1.09,
                label,
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=6.5,
                bbox=_PAPER,
                zorder=4,
            )
