"""Drift of a winner's time is reported once."""

from __future__ import annotations

from math import inf

import pytest

from bestof.errors import InvalidArgument
from bestof.selection.policies.drift import Drift


def test_says_so_when_the_median_has_risen() -> None:
    drift = Drift(1.0, rise=1.25, window=3)
    assert [drift.tell(seconds) for seconds in (1.0, 1.0, 1.0, 1.3, 1.3, 1.3)] == [False] * 4 + [
        True,
        False,
    ]
    assert drift.now == 1.3


def test_says_so_when_the_median_is_far_below() -> None:
    drift = Drift(4.0, speedup=2.0, window=3)
    assert [drift.tell(seconds) for seconds in (2.1, 2.1, 2.1, 1.9, 1.9, 1.9)] == [False] * 4 + [
        True,
        False,
    ]


def test_never_says_faster_where_it_is_told_so() -> None:
    drift = Drift(4.0, speedup=inf, window=1)
    assert not any(drift.tell(seconds) for seconds in (2.0, 1e-3, 0.0))
    assert drift.tell(5.1)


def test_a_burst_shorter_than_half_the_window_is_no_drift() -> None:
    drift = Drift(1.0)
    assert not any(drift.tell(seconds) for seconds in ([1.0] * 9 + [50.0] * 4 + [1.0] * 9) * 3)


def test_speaks_again_only_after_it_has_fallen_below_the_lower_threshold() -> None:
    drift = Drift(1.0, rise=1.25, fall=1.1, window=1)
    assert [drift.tell(seconds) for seconds in (1.3, 1.2, 1.3, 1.1, 1.3, 1.09, 1.25, 1.3)] == [
        True, False, False, False, False, False, False, True,
    ]  # fmt: skip


def test_speaks_again_of_a_fall_only_after_it_has_risen_again() -> None:
    drift = Drift(1.0, speedup=2.0, fall=1.1, window=1)
    assert [drift.tell(seconds) for seconds in (0.4, 0.8, 0.4, 0.9, 0.4, 0.95, 0.4)] == [
        True, False, False, False, False, False, True,
    ]  # fmt: skip


def test_waits_for_a_full_window() -> None:
    drift = Drift(1.0, window=4)
    assert [drift.tell(9.0) for _ in range(5)] == [False, False, False, True, False]


def test_rests_first() -> None:
    drift = Drift(1.0, window=2, rest=3)
    assert [drift.tell(9.0) for _ in range(6)] == [False] * 4 + [True, False]


def test_stages_are_summed_once_all_have_a_window() -> None:
    drift = Drift(2.0, window=2, stages=2)
    told = [(9.0, 0), (9.0, 0), (1.0, 1), (1.0, 1)]
    assert [drift.tell(*one) for one in told] == [False, False, False, True]
    assert drift.now == 10.0
    assert not any(Drift(2.0, window=1, stages=2).tell(9.0, stage) for stage in (0, 0, 0))


def test_times_below_a_microsecond_are_taken_for_one() -> None:
    drift = Drift(0.0, window=1)
    assert not drift.tell(1.2e-6)
    assert drift.tell(1.3e-6)
    assert not Drift(1.5e-6, window=1).tell(0.0)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"baseline": -1.0}, "baseline"),
        ({"baseline": inf}, "baseline"),
        ({"rise": 1.05}, "rise"),
        ({"fall": 0.9}, "fall"),
        ({"speedup": 1.0}, "speedup"),
        ({"window": 0}, "window"),
        ({"stages": 0}, "stages"),
        ({"rest": -1}, "rest"),
    ],
)
def test_refuses_invalid_arguments(arguments: dict[str, float], name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"Drift: {name}: expected"):
        Drift(**({"baseline": 1.0} | arguments))  # type: ignore[arg-type]  # on purpose
