"""The time for which processors had nothing to do."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bestof.idle_time import idle_seconds

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
STAT = (
    "cpu  30 0 0 3000 300 0 0 0 0 0\ncpu0 10 0 0 1000 100 0 0 0 0 0\n"
    "cpu1 10 0 0 900 90 0 0 0 0 0\ncpu12 10 0 0 1100 110 0 0 0 0 0\nintr 5 5\ncpu3 1 2\n"
)


@pytest.mark.parametrize(
    ("processors", "ticks"), [([0], 1100), ([0, 1], 2090), ([12], 1210), ([0, 1, 12], 3300)]
)
def test_idle_and_waiting_for_a_disk_are_summed(
    tmp_path: Path, processors: list[int], ticks: int
) -> None:
    file = tmp_path / "stat"
    file.write_text(STAT)
    assert idle_seconds(processors, str(file)) == ticks / TICKS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cpu  1 0 0 1 0\ncpu0 1 0 0 x 0\n",
        "cpu  1 0 0 1 0\ncpu0 1 0\n",
        "cpu  1 0 0 1 0\ncpuX 1 0 0 1 0\n",
        "cpu  0 0 0 0 0\ncpu0 0 0 0 0 0\ncpu1 0 0 0 0 0\n",  # a sandbox
        "cpu  9 0 0 9 0\ncpu0 9 0 0 9 0\n",  # without processor 1
    ],
)
def test_a_system_that_does_not_tell_gives_nothing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "stat"
    file.write_text(text)
    assert idle_seconds([0, 1], str(file)) is None
    assert idle_seconds([0, 1], str(tmp_path / "none")) is None
    assert idle_seconds([], str(file)) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_this_machine_tells() -> None:
    first = idle_seconds(os.sched_getaffinity(0))
    if first is None:
        pytest.skip("this system counts nothing")
    second = idle_seconds(os.sched_getaffinity(0))
    assert second is not None
    assert 0 < first <= second
