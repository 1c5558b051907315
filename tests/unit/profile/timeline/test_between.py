"""Work between operations is explained, and waiting is not."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from bestof import profile
from bestof.profile.breakdown import breakdown
from bestof.profile.profile import Step
from bestof.profile.span import Span
from bestof.profile.steady import steady_of
from bestof.profile.timeline.between import Reading, spans_between
from bestof.profile.timeline.operation import Operation

NS = 1e-9
MODULE = ("conv", "Conv2d")


def operation(start: int, end: int) -> Operation:
    return Operation("aten::relu", start, end, 1, -1, 0, False, (), ())


def found(readings: list[Reading], steps: tuple[Step, ...] = ()) -> list[Span]:
    """Return the spans around two operations, from 100 to 200 and from 250 to 300, of which a
    "forward" is followed by a "loss"."""
    operations = [operation(100, 200), operation(250, 300)]
    phases = dict(zip(operations, ("forward", "loss"), strict=True))
    return list(spans_between(operations, phases, readings, steps, 0))


def test_gaps_without_waiting_are_work() -> None:
    spans = found([Reading(0, 1000), Reading(400, 1400)])
    assert [(one.phase, one.start, one.self_seconds) for one in spans] == [
        ("forward", pytest.approx(0), pytest.approx(100 * NS)),
        ("loss", pytest.approx(200 * NS), pytest.approx(50 * NS)),
    ]


def test_all_waiting_is_taken_off() -> None:
    # The thread waited for 60 of 400 ns, and had gaps of 150.
    spans = found([Reading(0, 0), Reading(400, 340)])
    assert sum(one.self_seconds for one in spans) == pytest.approx(90 * NS)


def test_a_thread_that_waited_longer_than_its_gaps_has_no_work() -> None:
    assert [one.self_seconds for one in found([Reading(0, 0), Reading(400, 250)])] == [0, 0]


def test_waiting_counts_where_it_was_read() -> None:
    # The thread waited from 20 to 50 only.
    readings = [Reading(0, 0), Reading(20, 20), Reading(50, 20), Reading(400, 370)]
    assert [one.self_seconds for one in found(readings)] == [
        pytest.approx(20 * NS),
        0,
        pytest.approx(50 * NS),
        pytest.approx(50 * NS),
    ]


def test_a_module_runs_in_the_forward_phase_to_its_end() -> None:
    spans = found([Reading(0, 0), Reading(90, 90, MODULE), Reading(230, 230), Reading(400, 400)])
    assert [(one.phase, one.module, round(one.self_seconds / NS)) for one in spans] == [
        ("forward", "", 90),
        ("forward", "conv", 10 + 30),
        ("loss", "", 20),
    ]


def test_a_gap_is_divided_between_steps() -> None:
    steps = (Step(50 * NS, 220 * NS), Step(220 * NS, 300 * NS))
    spans = found([Reading(0, 0), Reading(400, 400)], steps)
    assert [(one.step, round(one.self_seconds / NS)) for one in spans] == [
        (-1, 50),
        (0, 50),
        (0, 20),
        (1, 30),
    ]


def test_without_readings_nothing_is_explained() -> None:
    assert found([]) == []


def test_a_capture_names_the_work_between_operations() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile.capture() as captured:
        for _ in range(4):
            model(torch.ones(2, 3, 12, 12)).sum().backward()
            optimizer.step()
    steady = steady_of(captured.profile)
    assert {one.module for one in steady.between} >= {"0", "1", "2", ""}
    assert {one.phase for one in steady.between} >= {"forward", "backward", "optimizer"}
    assert not any(one.name.startswith("bestof.") for one in captured.profile.spans)
    rows = {row.keys[0]: row.seconds for row in breakdown(steady, ("primitive",))}
    explained = sum(one.self_seconds for one in steady.all_spans)
    assert sum(rows.values()) == pytest.approx(explained)
    assert explained <= steady.wall * (1 + 1e-9)
