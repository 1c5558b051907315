"""Draws pictures of measured models, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bestof.bench.model.peers.table import PEERS
from bestof.bench.model.result import LayerTimes, ModelTimes, PeerTime
from bestof.distribution import install
from bestof.errors import InvalidArgument
from bestof.view.quantity import plural
from bestof.view.saved_figure import save_figure

_COLOURS = {peer.name: peer.colour for peer in PEERS}
# Readers see a picture at the width of a page's text. Three groups of bars fit side by side.
_WIDTH = 8.3
_GROUPS = 3
_PASSES = ("forward", "input gradient", "weight gradient")


def check_format(file: Path) -> None:
    """Raise InvalidArgument if matplotlib does not know the file's ending."""
    from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415  optional and slow

    known = FigureCanvasBase.get_supported_filetypes()
    if file.suffix and file.suffix[1:].lower() not in known:
        raise InvalidArgument(
            f"{file}: there is no picture of this kind; take one of {', '.join(sorted(known))}"
        )


def draw(results: Sequence[ModelTimes], file: Path) -> tuple[Path, ...]:
    """Draw the results; return the files.

    The comparison goes into `file`. Further pictures extend its name: the first steps of training
    (-steps), the throughput by threads (-threads), and the layers of every model (-layers-MODEL).
    Raises InvalidArgument if matplotlib is missing, or does not know the file's ending.
    """
    if find_spec("matplotlib") is None:
        raise InvalidArgument(
            f"pictures need matplotlib, which is not installed; {install('plot')}"
        )
    from matplotlib.figure import Figure  # noqa: PLC0415  optional and slow

    pictures: list[tuple[str, Any]] = [("", _comparison(results, Figure))]
    if any(peer.first_seconds for one in results if one.job.train for peer in one.peers):
        pictures.append(("-steps", _first_steps([one for one in results if one.job.train], Figure)))
    if len({one.job.threads for one in results}) > 1:
        pictures.append(("-threads", _by_threads(results, Figure)))
    for one in results:
        if one.layers:
            mode = "training" if one.job.train else "inference"
            pictures.append(
                (f"-layers-{one.job.model}-{mode}-b{one.job.batch}", _layers(one, Figure))
            )
    files = []
    for suffix, picture in pictures:
        target = file.with_name(f"{file.stem}{suffix}{file.suffix}")
        _name_machine(picture, results)
        try:
            save_figure(picture, target, dpi=160, bbox_inches="tight")
        except ValueError as error:
            raise InvalidArgument(f"{target}: {error}") from error
        files.append(target)
    return tuple(files)


def _name_machine(picture: Any, results: Sequence[ModelTimes]) -> None:
    """Write below a picture on which processors its results were measured."""
    machines = dict.fromkeys(one.machine or "processor not noted" for one in results)
    picture.text(0.5, 0.0, "; ".join(machines), ha="center", va="top", fontsize=8)


def _comparison(results: Sequence[ModelTimes], figure: Any) -> Any:
    """Draw bars: images a second over those of PyTorch eager, a group for each job."""
    names = [name for name in _COLOURS if any(_seconds(one, name) for one in results)]
    rows = [results[first : first + _GROUPS] for first in range(0, len(results), _GROUPS)] or [[]]
    picture = figure(figsize=(_WIDTH, 0.9 + 2.1 * len(rows)))
    for axes, row in zip(picture.subplots(len(rows), squeeze=False)[:, 0], rows, strict=True):
        for group, one in enumerate(row):
            _group_of_bars(axes, group, one, names)
        axes.axhline(1.0, color="#444444", linewidth=0.6, zorder=1)
        axes.set_xticks(range(len(row)), [_title(one) for one in row], fontsize=9)
        axes.set_xlim(-0.5, _GROUPS - 0.5 if len(rows) > 1 else max(1, len(row)) - 0.5)
        axes.margins(y=0.16)
    picture.supylabel("times as fast as PyTorch eager", fontsize=9)
    picture.tight_layout()
    _finish(picture, names, _labels(results))
    return picture


def _group_of_bars(axes: Any, group: int, one: ModelTimes, names: Sequence[str]) -> None:
    """Draw the bars of the peers that have a time, side by side, each with its number."""
    base = _ratio(one, "eager")
    ratios = {name: ratio / base for name in names if base and (ratio := _ratio(one, name))}
    width = 0.84 / max(1, len(names))
    for number, (name, ratio) in enumerate(ratios.items()):
        left = group + (number - (len(ratios) - 1) / 2) * width
        bar = axes.bar(left, ratio, width * 0.92, color=_COLOURS[name], zorder=2)
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.2}  # hides the line at 1
        axes.bar_label(bar, fmt="%.1f", padding=2, fontsize=7, bbox=paper)


def _first_steps(results: Sequence[ModelTimes], figure: Any) -> Any:
    """Draw lines: images a second, step by step from the first."""
    picture = figure(figsize=(_WIDTH, 3.2 * len(results)))
    all_axes = picture.subplots(len(results), squeeze=False)
    for one, axes in zip(results, all_axes[:, 0], strict=True):
        for peer in one.peers:
            if peer.first_seconds:
                rates = [one.job.batch / seconds for seconds in peer.first_seconds]
                axes.plot(
                    range(1, len(rates) + 1),
                    rates,
                    color=_COLOURS[peer.name],
                    linewidth=1.2,
                )
        axes.set_title(_title(one).replace("\n", ", "), fontsize=9)
        axes.set_xlabel("step")
        axes.set_ylabel("images a second")
        axes.set_ylim(bottom=0)
    picture.tight_layout()
    drawn = {peer.name for one in results for peer in one.peers if peer.first_seconds}
    _finish(picture, [name for name in _COLOURS if name in drawn], _labels(results))
    return picture


def _by_threads(results: Sequence[ModelTimes], figure: Any) -> Any:
    """Draw lines: images a second over the number of threads, a panel for each model and batch."""
    panels: dict[tuple[str, int, bool], list[ModelTimes]] = {}
    for one in results:
        panels.setdefault((one.job.model, one.job.batch, one.job.train), []).append(one)
    picture = figure(figsize=(max(_WIDTH, 4.0 * len(panels)), 3.6))
    all_axes = picture.subplots(1, len(panels), squeeze=False)
    for (model, batch, train), axes in zip(panels, all_axes[0], strict=True):
        runs = sorted(panels[model, batch, train], key=lambda one: one.job.threads)
        for name, colour in _COLOURS.items():
            points = [
                (one.job.threads, batch / seconds)
                for one in runs
                if (seconds := _seconds(one, name))
            ]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color=colour)
        axes.set_title(_title(runs[0]).replace("\n", ", ").rpartition(", ")[0], fontsize=9)
        axes.set_xticks([one.job.threads for one in runs])
        axes.set_xlabel("threads")
        axes.set_ylabel("images a second")
        axes.set_ylim(bottom=0)
    picture.tight_layout()
    names = [name for name in _COLOURS if any(_seconds(one, name) for one in results)]
    _finish(picture, names, _labels(results))
    return picture


def _layers(one: ModelTimes, figure: Any) -> Any:
    """Draw bars: milliseconds of every alternative that was tried, a panel for each pass."""
    passes = [name for name in _PASSES if any(layer.name == name for layer in one.layers)]
    names = list(dict.fromkeys(name for layer in one.layers for name in layer.seconds))
    most = max(sum(layer.name == name for layer in one.layers) for name in passes)
    picture = figure(figsize=(max(8.0, 0.9 * most), 3.4 * len(passes)))
    all_axes = picture.subplots(len(passes), squeeze=False)
    shades = _shades(len(names))
    for title, axes in zip(passes, all_axes[:, 0], strict=True):
        layers = [layer for layer in one.layers if layer.name == title]
        _layer_bars(axes, layers, names, shades)
        axes.set_title(f"{one.job}: {title}", fontsize=9)
    handles, labels = all_axes[0, 0].get_legend_handles_labels()
    picture.tight_layout()
    picture.legend(
        handles,
        labels,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=5,
        frameon=False,
        fontsize=7,
    )
    return picture


def _layer_bars(
    axes: Any, layers: Sequence[LayerTimes], names: Sequence[str], shades: Sequence[Any]
) -> None:
    width = 0.86 / len(names)
    for number, name in enumerate(names):
        points = [
            (place, layer.seconds[name] * 1e3)
            for place, layer in enumerate(layers)
            if name in layer.seconds
        ]
        lefts = [place - 0.43 + (number + 0.5) * width for place, _ in points]
        axes.bar(
            lefts, [height for _, height in points], width * 0.95, color=shades[number], label=name
        )
        for left, (place, height) in zip(lefts, points, strict=True):
            if layers[place].chosen == name:
                axes.plot(left, height, marker="v", markersize=4, color="black")
    axes.set_yscale("log")
    axes.set_ylabel("ms")
    axes.set_xticks(
        range(len(layers)), [_layer_title(layer.notation) for layer in layers], fontsize=6
    )
    axes.spines[["top", "right"]].set_visible(False)


def _shades(count: int) -> list[Any]:
    from matplotlib import colormaps  # noqa: PLC0415  as above

    return [colormaps["tab20"](number % 20) for number in range(count)]


def _layer_title(notation: str) -> str:
    fields = notation.split(",")
    return "\n".join(
        fields[:2] + [field for field in fields[3:] if field[0] in "sg" and field[1:] != "1"]
    )


def _finish(picture: Any, names: Sequence[str], labels: dict[str, str]) -> None:
    from matplotlib.patches import Patch  # noqa: PLC0415  as above

    for axes in picture.axes:
        axes.spines[["top", "right"]].set_visible(False)
    handles = [Patch(color=_COLOURS[name], label=labels[name]) for name in names]
    picture.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=4,
        frameon=False,
        fontsize=8,
    )


def _labels(results: Sequence[ModelTimes]) -> dict[str, str]:
    return {peer.name: peer.label for one in results for peer in one.peers}


def _peer(one: ModelTimes, name: str) -> PeerTime | None:
    return next((peer for peer in one.peers if peer.name == name), None)


def _seconds(one: ModelTimes, name: str) -> float | None:
    peer = _peer(one, name)
    return None if peer is None else peer.seconds


def _ratio(one: ModelTimes, name: str) -> float | None:
    peer = _peer(one, name)
    return None if peer is None else peer.ratio


def _title(one: ModelTimes) -> str:
    job = one.job
    size = "" if job.size is None else f" {job.size[0]}x{job.size[1]}"
    mode = "training, " if job.train else ""
    return f"{job.model}{size}\n{mode}batch {job.batch}, {plural(job.threads, 'thread')}"
