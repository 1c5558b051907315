"""The tables of `bestof bench model`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bestof.bench.model.result import LayerTimes, MatrixRow, ModelTimes, PeerTime
from bestof.view.bench.table import Table
from bestof.view.quantity import ratio

_HEADINGS = ("", "peer", "ms", "spread", "least", "ratio", "quartiles", "error", "MB")
_MATRIX_HEADINGS = ("", "model", "by", "ms", "as is", "ratio", "quartiles", "error")
_LAYER_HEADINGS = ("", "layer", "pass", "by", "ms", "ratio")


def model_tables(one: ModelTimes) -> Iterator[Table]:
    """Return the table of the peers; on CUDA also the alternatives of each convolution."""
    best = next((peer for peer in one.peers if peer.name == one.best), None)
    against = "" if best is None else f": ratios against {best.label}"
    if one.bound is not None and one.peak is not None:
        against += f"; {one.bound * 1e3:.2f} ms at the peak of {one.peak / 1e9:.0f} GFLOP/s"
    yield Table(f"{one.job}{against}", _HEADINGS, [_cells(one, peer) for peer in one.peers])
    # On the CPU the times of layers are for pictures only. On a new device the table tells what
    # there is to choose from.
    if one.layers and one.job.device != "cpu":
        title = f"{one.job}: the alternatives of each convolution"
        yield Table(title, _LAYER_HEADINGS, layer_rows(one.layers), left=4)


def matrix_table(rows: Sequence[MatrixRow]) -> Table:
    """Return the table of the matrix; an exclamation mark stands before a broken promise."""
    return Table("", _MATRIX_HEADINGS, [_matrix_cells(row) for row in rows], left=3)


def layer_rows(layers: Sequence[LayerTimes]) -> list[tuple[str, ...]]:
    """Return a row for every alternative with a time, the fastest of a layer's pass first.

    A star marks the chosen alternative.
    """
    rows: list[tuple[str, ...]] = []
    for layer in layers:
        first = next(iter(layer.seconds.values()), None)  # PyTorch's own kernel
        words = layer.notation, layer.name
        for name, seconds in sorted(layer.seconds.items(), key=lambda item: item[1]):
            faster = first / seconds if first is not None and seconds > 0 else None
            star = "*" if name == layer.chosen else ""
            rows.append((star, *words, name, f"{seconds * 1e3:.3f}", ratio(faster)))
            words = "", ""
    return rows


def _cells(one: ModelTimes, peer: PeerTime) -> tuple[str, ...]:
    if peer.seconds is None:
        return "", peer.label, peer.reason or "not measured", *[""] * 6
    fastest = min(other.seconds for other in one.peers if other.seconds is not None)
    unsettled = " (unsettled)" if peer.settled is False else ""
    return (
        "*" if peer.seconds == fastest else "",
        peer.label + unsettled,
        f"{peer.seconds * 1e3:.2f}",
        "" if peer.spread is None else f"± {peer.spread * 1e3:.2f}",
        "" if peer.least is None else f"{peer.least * 1e3:.2f}",
        ratio(peer.ratio),
        _quartiles(peer.low, peer.high),
        "" if peer.error is None else f"{peer.error:.0e}",
        "" if peer.peak_bytes is None else f"{peer.peak_bytes / 1e6:.0f}",
    )


def _matrix_cells(row: MatrixRow) -> tuple[str, ...]:
    mode = "training" if row.job.train else "inference"
    name = f"{row.job.model} {mode}, b{row.job.batch}"
    if row.seconds is None or row.replaced_seconds is None:
        return "", name, row.name, row.reason or "not measured", "", "", "", ""
    return (
        "!" if row.below else "",
        name,
        row.name + (" (unsettled)" if row.settled is False else ""),
        f"{row.seconds * 1e3:.2f}",
        f"{row.replaced_seconds * 1e3:.2f}",
        ratio(row.ratio),
        _quartiles(row.low, row.high),
        f"{row.error:.0e}" if row.error else "",
    )


def _quartiles(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.2f} to {high:.2f}"
