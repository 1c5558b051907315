"""Kernels of bestof report lines like oneDNN's, so that profiles of tuned programs are complete."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import bestof.torch as bt  # noqa: E402
from bestof import profile  # noqa: E402
from bestof.profile.log import read_lines  # noqa: E402
from bestof.profile.timeline.operation import Operation, nest  # noqa: E402
from bestof.profile.timeline.own_lines import own_lines  # noqa: E402
from bestof.profile.timeline.placement import place  # noqa: E402
from bestof.profile.verbose.work import flops_of  # noqa: E402

# A layer of 16 to 32 channels on 14 x 14, stride 2, pads of 1 row and 2 columns.
X, WEIGHT, Y = [4, 16, 14, 14], [32, 16, 3, 5], [4, 32, 7, 7]
GEOMETRY = [[2, 2], [1, 2], [1, 1], False, [0, 0], 1]
NOTATION = "i16x14x14,k32x3x5,b4,s2,p1x2,d1,g1"
PROBLEM = "mb4_ic16oc32_ih14oh7kh3sh2dh0ph1_iw14ow7kw5sw2dw0pw2"
DECISIONS = {
    ("forward", NOTATION): "fake forward",
    ("input gradient", NOTATION): "fake data",
    ("weight gradient", NOTATION): "fake weights",
}


def forward(children: int = 0) -> list[Operation]:
    concrete = [None, None, None, *GEOMETRY]
    found = [
        Operation(
            "aten::convolution", 0, 1000, 1, 0, 0, False, [X, WEIGHT, [32]], ["float"], concrete
        )
    ]
    if children:
        found.append(
            Operation("aten::mkldnn_convolution", 10, 10 + children, 1, -1, 0, False, [], [])
        )
    nest(found)
    return found


def backward(mask: list[bool]) -> list[Operation]:
    concrete = [None, None, None, [32], *GEOMETRY, mask]
    found = [
        Operation(
            "aten::convolution_backward",
            0,
            10**6,
            1,
            0,
            1,
            False,
            [Y, X, WEIGHT],
            ["float"],
            concrete,
        )
    ]
    nest(found)
    return found


def test_the_self_time_of_a_settled_convolution_is_a_line() -> None:
    (placed,) = own_lines(forward(), [], DECISIONS)
    line = placed.line
    assert (line.source, line.implementation) == ("bestof", "bestof:fake forward")
    assert (line.direction, line.problem) == ("forward_training", PROBLEM)
    assert line.seconds == pytest.approx(1000e-9)


def test_the_line_is_read_back_from_its_text() -> None:
    (placed,) = own_lines(forward(), [], DECISIONS)
    log = read_lines([placed.line.text])
    assert log.unknown == 0
    (read,) = log.lines
    assert (read.source, read.implementation, read.problem) == (
        "bestof",
        "bestof:fake forward",
        PROBLEM,
    )
    assert flops_of(read) == flops_of(placed.line) > 0


def test_calls_of_pytorch_give_no_line_of_bestof() -> None:
    assert own_lines(forward(children=900), [], DECISIONS) == []
    assert own_lines(forward(), [], {}) == []


@pytest.mark.parametrize(
    ("mask", "direction", "implementation"),
    [
        ([True, True, True], "backward_data+backward_weights", "bestof:fake data+fake weights"),
        ([False, True, True], "backward_weights", "bestof:fake weights"),
        ([True, False, False], "backward_data", "bestof:fake data"),
    ],
)
def test_the_wanted_gradients_are_recorded(
    mask: list[bool], direction: str, implementation: str
) -> None:
    (placed,) = own_lines(backward(mask), [], DECISIONS)
    assert (placed.line.direction, placed.line.implementation) == (direction, implementation)
    (one,) = own_lines(forward(), [], DECISIONS)
    assert flops_of(placed.line) == flops_of(one.line) * (mask[0] + mask[1])


def test_a_gradient_that_onednn_computed_is_left_out() -> None:
    text = (
        "onednn_verbose,v1,0.1,primitive,exec,cpu,convolution,jit,backward_data,"
        f"src:f32::blocked:a::f0,,,{PROBLEM},0.1"
    )
    operations = backward([True, True, True])
    placed = place(read_lines([text]).lines, operations)
    assert placed[0].operation is operations[0]
    (found,) = own_lines(operations, placed, DECISIONS)
    assert found.line.direction == "backward_weights"


def test_steps_of_a_plan_are_ranges_with_their_problems() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    x = torch.ones(2, 3, 12, 12)
    plan = bt.optimize(model, (x,))
    with profile.capture() as captured, torch.no_grad():
        plan(x)
    steps = [span for span in captured.profile.spans if span.operation == "bestof::step"]
    assert {span.module for span in steps if span.name == "bestof::step"} >= {"conv2d", "conv2d_1"}
    assert captured.profile.unattributed == 0
    with profile.capture() as captured, torch.no_grad():
        model(x)
    assert not [span for span in captured.profile.spans if span.source == "bestof"]


def test_trials_and_decisions_are_marked() -> None:
    layer = nn.Conv2d(4, 4, 3)
    x = torch.ones(1, 4, 7, 9)
    with torch.no_grad(), bt.enabled(), profile.capture() as captured:
        for _ in range(60):
            layer(x)
    marks = captured.profile.marks
    trials = [mark for mark in marks if mark.track == "trials"]
    assert trials
    assert all(mark.start >= 0 and mark.seconds > 0 for mark in trials)
    assert all(mark.start + mark.seconds <= captured.profile.wall for mark in trials)
    assert all("i4x7x9,k4x3x3,b1" in mark.name for mark in trials)
    assert [mark.start for mark in marks] == sorted(mark.start for mark in marks)


def test_the_logger_is_left_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("bestof")
    before = logger.level, list(logger.filters)
    with profile.capture():
        logger.info("not shown before, nor now")
        logger.warning("shown")
    assert (logger.level, list(logger.filters)) == before
    assert [record.message for record in caplog.records] == ["shown"]
