"""Kernels below the two ceilings of a machine: its multiply-adds and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Point:
    """One kernel on one problem. `intensity`: FLOPs a byte that must be moved; `rate`: FLOPs a second; `label` names
    the problem, `series` the kernel."""

    series: str
    label: str
    intensity: float
    rate: float


@dataclass(frozen=True, slots=True)
class Roof:
    """What a machine reaches at most: FLOPs a second, and bytes a second. `savings` are factors by which algorithms
    with fewer multiplications raise the first, by their names."""

    peak: float
    bandwidth: float
    savings: tuple[tuple[str, float], ...] = ()


# Colours that are told apart in grey and by the colour-blind, and a shape for each as well.
_MARKS = (("#0072b2", "o"), ("#d55e00", "s"), ("#009e73", "^"), ("#cc79a7", "D"))


def draw_roofline(points: Sequence[Point], roof: Roof, title: str, path: Path) -> None:
    """Draw to `path`, in the format of its ending. Needs matplotlib."""
    from matplotlib.figure import Figure  # noqa: PLC0415  optional, and slow to import

    figure = Figure(figsize=(10, 6.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    left = 0.7 * min(point.intensity for point in points)
    right = 1.6 * max(point.intensity for point in points)
    top = max([roof.peak * max([1.0, *(by for _, by in roof.savings)]), *(point.rate for point in points)])
    bottom = 0.5 * min([roof.peak, *(point.rate for point in points)])
    for name, saving in (("multiply-add", 1.0), *roof.savings):
        peak = roof.peak * saving
        ridge = peak / roof.bandwidth
        axes.plot(
            [left, max(left, ridge), right],
            [min(peak, left * roof.bandwidth), peak, peak],
            color="#222222" if saving == 1.0 else "#999999",
            linewidth=1.6 if saving == 1.0 else 1.0,
            linestyle="-" if saving == 1.0 else "--",
            zorder=1,
        )
        axes.annotate(
            f"{name}: {peak / 1e9:,.0f} GFLOP/s",
            (right, peak),
            xytext=(-4, 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8,
            color="#444444",
        )
    axes.annotate(
        f"copy: {roof.bandwidth / 1e9:.1f} GB/s",
        (left * 1.05, left * 1.05 * roof.bandwidth),
        xytext=(2, 6),
        textcoords="offset points",
        fontsize=8,
        color="#444444",
        rotation_mode="anchor",
        rotation=45,
        transform_rotates_text=True,
    )
    series = list(dict.fromkeys(point.series for point in points))
    for name, (colour, shape) in zip(series, _MARKS, strict=False):
        own = [point for point in points if point.series == name]
        axes.scatter(
            [point.intensity for point in own],
            [point.rate for point in own],
            s=34,
            color=colour,
            marker=shape,
            label=name,
            zorder=3,
            edgecolors="white",
            linewidths=0.6,
        )
    for label in dict.fromkeys(point.label for point in points):
        highest = max((point for point in points if point.label == label), key=lambda point: point.rate)
        axes.annotate(
            label,
            (highest.intensity, highest.rate),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=6.5,
            color="#222222",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top * 1.5)
    axes.set_xlabel("FLOPs of the direct algorithm a byte of input, weights and output")
    axes.set_ylabel("FLOPs of the direct algorithm a second")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1e9:,.0f} G")
    axes.set_title(title, fontsize=11)
    axes.grid(True, which="major", color="#e5e5e5", linewidth=0.6)
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path)
