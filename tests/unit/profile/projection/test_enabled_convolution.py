"""Whole convolutions are replayed by what `enable` chooses from, and take the place of their
lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from bestof import profile  # noqa: E402
from bestof.profile.projection.enabled_convolution import (  # noqa: E402
    convolutions_of,
    without_convolutions,
)
from bestof.profile.projection.measured import Measured  # noqa: E402
from bestof.profile.projection.problem import Problem  # noqa: E402
from bestof.profile.projection.projection import (  # noqa: E402
    ENABLED,
    Projection,
    convolutions_of_step,
)
from bestof.profile.steady import Steady, steady_of  # noqa: E402
from bestof.profile.stopwatch import Disturbance  # noqa: E402


@pytest.fixture(scope="module")
def steady() -> Steady:
    """A step with three forward passes, two gradients of all operands, and one of the weight."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, bias=False).to(memory_format=torch.channels_last),
        nn.Conv2d(8, 8, 3, groups=2),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile.capture() as captured:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 3, 12, 12)).square().mean().backward()
            optimizer.step()
    return steady_of(captured.profile)


def test_a_convolution_has_all_that_runs_inside(steady: Steady) -> None:
    found = convolutions_of(steady.spans)
    assert [spans[0].name for spans in found] == [
        *["aten::convolution"] * 3,
        *["aten::convolution_backward"] * 3,
    ]
    lines = [span for spans in found for span in spans if span.kind == "line"]
    assert len(lines) == sum(span.kind == "line" for span in steady.spans) >= 8
    rest = without_convolutions(steady, {spans[0].text for spans in found})
    assert not any("conv" in span.operation for span in rest.spans if span.kind == "line")
    assert len(rest.spans) + sum(map(len, found)) == len(steady.spans)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_each_wanted_pass_is_replayed(steady: Steady) -> None:
    found = convolutions_of_step(steady, 1)
    assert sum(problem.calls for problem, _ in found) == 6
    names = {}
    for problem, call in found:
        kinds = {one.kind: one for one in call.measure(0.01)}
        assert kinds["same"].hot > 0
        names[problem.primitive, problem.problem.split(":")[0]] = kinds["bestof"].name
    backward = "aten::convolution_backward"
    # The image needs no gradient.
    assert "input gradient" not in names[backward, "2x8x10x10"]
    for shape in ("2x8x10x10", "2x8x8x8", "2x8x6x6"):
        assert "weight gradient by" in names[backward, shape]
    assert "bias gradient by sum" in names[backward, "2x8x6x6"]
    assert "bias gradient" not in names[backward, "2x8x8x8"]
    assert sum("forward by" in one for one in names.values()) == 3


def problem(key: str, calls: int, seconds: float, *measured: Measured) -> Problem:
    return Problem(
        *(key, "convolution", "forward", "onednn:jit", "mb1", calls, seconds, ("conv",)), measured
    )


def test_whole_convolutions_take_the_place_of_their_lines() -> None:
    # A reorder takes 3 s: 2 inside of the convolution, and 1 elsewhere.
    reorder = problem("reorder", 3, 3.0, Measured("same", "oneDNN", 0.9, 0.9))
    line = problem("line", 1, 4.0, Measured("same", "oneDNN", 3.5, 3.5))
    whole = problem(
        *("whole", 1, 7.0, Measured("same", "PyTorch", 6.0, 6.0)),
        Measured("bestof", "winograd4", 2.0, 2.5),
    )
    calm = Disturbance(0.0, 0.0)
    done = Projection(10.0, (reorder, line), calm, 2, (whole,), {"reorder": 1.0})
    assert done.replayed() == pytest.approx(7.0)
    assert done.replayed(ENABLED) == pytest.approx(8.0)
    # 2 s are not replayed, 0.9 s of the reorder stay, and the convolution takes 2.5 s cold.
    assert done.expected(ENABLED) == pytest.approx(2.0 + 0.9 + 2.5)
    assert done.projected(ENABLED, cold=False) == pytest.approx(0.9 + 2.0)
    assert done.expected("as logged, alone") == pytest.approx(3.0 + 2.7 + 3.5)
    assert [(one.key, saved) for one, _, saved in done.advice()] == [("whole", pytest.approx(4.5))]
    # Without whole convolutions, lines count.
    assert replace(done, convolutions=()).expected(ENABLED) == pytest.approx(3.0 + 2.7 + 3.5)
