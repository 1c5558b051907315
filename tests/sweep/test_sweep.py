"""The sweep in short: alternatives that hand calls to a library, in a process with checked memory.

`make sweep` runs thousands of problems.
"""

from __future__ import annotations

import sys

import pytest

import sweep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs glibc's checks of memory")


@pytest.mark.parametrize(
    ("operation", "problems"),
    [("convolution", 80), ("layer", 60), ("product", 60), ("pooling", 60)],
)
def test_alternatives_of_a_library_are_right_and_stay_in_their_memory(
    operation: str, problems: int
) -> None:
    found = sweep.sweep(operation, 0, problems)
    assert not found.failures, "\n".join(found.failures)
    assert found.cases.total() >= problems // 2


def test_plans_of_random_models_are_accepted_and_right() -> None:
    found = sweep.sweep("model", 11, 19)
    assert not found.failures, "\n".join(found.failures)
    assert found.cases.total() == 8


@pytest.mark.long
def test_a_crash_is_named_and_the_sweep_goes_on() -> None:
    found = sweep.sweep("faults", 0, 3)
    assert found.cases == {"right": 3, "written behind": 1, "read behind": 1, "wrong": 1}
    told = [what.split(":")[1] for what in found.failures]
    assert told == ["1 written behind", "1 read behind", "2 wrong"], found.failures
