"""Stacked bars leave room for their totals."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from bestof.view.stacked_bars import Bar, _draw


@pytest.mark.parametrize("parts", [{"a": 2.0, "b": 1.0}, {"a": 3.0}, {"a": 0.0}, {}])
def test_a_total_stands_beside_its_bar_within_the_axes(parts: dict[str, float]) -> None:
    axes = Figure().subplots()
    _draw(axes, [Bar("one", parts), Bar("other", {"a": 0.5 * sum(parts.values())})], ["a", "b"])
    total = 1e3 * sum(parts.values())
    low, high = axes.get_xlim()
    assert low == 0.0
    assert high == pytest.approx(1.1 * total if total else 1.0)
    assert [text.get_position()[0] for text in axes.texts] == pytest.approx([total, total / 2])
