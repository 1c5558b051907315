"""Lines of threads that compute at the same time find the operations of their threads."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("torch")

from bestof.profile.timeline.operation import Operation
from bestof.profile.timeline.placement import place
from bestof.profile.verbose.line import Line

_MICRO = 1_000


def line(start: int, end: int, problem: str = "mb2_ic3oc8") -> Line:
    """A convolution between two times in microseconds."""
    return Line(
        "onednn",
        "convolution",
        "jit",
        "forward_training",
        (),
        "",
        "",
        problem,
        (end - start) * 1e-6,
        start * 1e-6,
    )


def call(thread: int, start: int, end: int, channels: int = 8) -> Operation:
    return Operation(
        name="aten::mkldnn_convolution",
        start=start * _MICRO,
        end=end * _MICRO,
        thread=thread,
        sequence=-1,
        forward_thread=0,
        annotation=False,
        shapes=[[2, 3, 12, 12], [channels, 3, 3, 3]],
        dtypes=[],
    )


def test_one_layer_on_two_threads_at_once() -> None:
    # Both operations enclose all lines, of which each thread computes a reorder and a convolution.
    calls = [call(1, 100, 200), call(2, 105, 210)]
    lines = [line(110, 130), line(112, 140), line(135, 180), line(145, 190)]
    placed = place(lines, calls)
    owners = [one.operation for one in placed]
    assert {id(one) for one in owners[:2]} == {id(one) for one in calls}
    for one, other in itertools.combinations(placed, 2):
        overlap = one.start < other.end and other.start < one.end
        assert not overlap or one.operation is not other.operation


def test_a_thread_whose_operation_ended_issues_no_line() -> None:
    calls = [call(1, 100, 150), call(2, 120, 300)]
    placed = place([line(110, 140), line(160, 250)], calls)
    assert [one.operation for one in placed] == calls


def test_a_line_at_the_wrong_thread_takes_no_other_line_along() -> None:
    # The first line has no size that tells the threads apart, and may go to either one.
    for starts in ((100, 101), (101, 100)):
        calls = [call(1, starts[0], 300), call(2, starts[1], 300, channels=4)]
        lines = [line(110, 200, ""), line(150, 180, "mb2_ic3oc4"), line(160, 190, "mb2_ic3oc8")]
        placed = place(lines, sorted(calls, key=lambda one: one.start))
        owners = [one.operation for one in placed]
        assert [one.shapes[1][0] for one in owners[1:] if one is not None] == [4, 8]
