"""The table of the alternatives that were tried for each convolution of a model."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.bench.model.result import LayerTimes
from bestof.view.quantity import ratio

HEADINGS = ("", "layer", "pass", "by", "ms", "ratio")


def layer_rows(layers: Sequence[LayerTimes]) -> list[tuple[str, ...]]:
    """A row for every alternative with a time, the fastest of a layer's pass first; a star marks the chosen one."""
    rows: list[tuple[str, ...]] = []
    for layer in layers:
        first = next(iter(layer.seconds.values()), None)  # PyTorch as it is
        layer_, pass_ = layer.notation, layer.name
        for name, seconds in sorted(layer.seconds.items(), key=lambda item: item[1]):
            rows.append(
                (
                    "*" if name == layer.chosen else "",
                    layer_,
                    pass_,
                    name,
                    f"{seconds * 1e3:.3f}",
                    ratio(first / seconds if first is not None and seconds > 0 else None),
                )
            )
            layer_ = pass_ = ""
    return rows
