"""Each bar of a projection is a whole step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("torch")

from bestof.cli import projection_picture
from bestof.profile.projection.measured import Measured
from bestof.profile.projection.problem import Problem
from bestof.profile.projection.projection import Projection
from bestof.profile.stopwatch import Disturbance
from bestof.view.stacked_bars import Bar


def problem(key: str, seconds: float, *alone: tuple[str, float]) -> Problem:
    measured = tuple(Measured(kind, kind, hot, 2 * hot) for kind, hot in alone)
    return Problem(
        key=key,
        primitive=key,
        direction="",
        implementation="",
        problem="",
        calls=1,
        seconds=seconds,
        modules=(),
        roofline=None,
        measured=measured,
    )


def test_each_bar_is_a_whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Bar] = []

    def draw(panels: Sequence[Sequence[Bar]], _title: str, _path: object) -> None:
        drawn.extend(panels[0])

    monkeypatch.setattr(projection_picture, "draw_stacked_bars", draw)
    # The line of the convolution was not replayed, and the convolution as a whole was.
    done = Projection(
        10.0,
        (problem("norm", 2.0, ("same", 1.0)), problem("line", 5.0)),
        Disturbance(0.0, 0.0),
        1,
        (problem("convolution", 6.0, ("same", 6.0), ("bestof", 2.0)),),
        {"norm": 2.0, "line": 0.0},
    )
    projection_picture.draw_projection("train.py", "a processor", done, "picture.png")
    bars = {bar.label: bar.parts for bar in drawn}
    assert bars["observed"] == {"norm": 2.0, "(not replayed)": 8.0}
    assert bars["as logged, alone, hot, 20% replayed"] == {"norm": 1.0, "(not replayed)": 8.0}
    whole = bars["with `enable`, hot, 80% replayed"]
    assert whole == {"norm": 1.0, "convolution": 2.0, "(not replayed)": 2.0}
    assert max(sum(parts.values()) for parts in bars.values()) == 10.0
