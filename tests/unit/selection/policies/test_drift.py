"""A winner that has become slower says so once."""

from __future__ import annotations

import pytest

from bestof.errors import InvalidArgument
from bestof.selection.policies.drift import Drift


def test_says_so_when_the_median_has_risen() -> None:
    drift = Drift(1.0, rise=1.25, window=3)
    assert [drift.tell(seconds) for seconds in (1.0, 1.0, 1.0, 1.3, 1.3, 1.3)] == [False] * 4 + [True, False]


def test_a_burst_shorter_than_half_the_window_is_nothing() -> None:
    drift = Drift(1.0)
    assert not any(drift.tell(seconds) for seconds in ([1.0] * 9 + [50.0] * 4 + [1.0] * 9) * 3)


def test_speaks_again_only_after_it_has_fallen_below_the_lower_threshold() -> None:
    drift = Drift(1.0, rise=1.25, fall=1.1, window=1)
    assert [drift.tell(seconds) for seconds in (1.3, 1.2, 1.3, 1.1, 1.3, 1.09, 1.25, 1.3)] == [
        True, False, False, False, False, False, False, True,
    ]  # fmt: skip


def test_waits_for_a_full_window() -> None:
    drift = Drift(1.0, window=4)
    assert [drift.tell(9.0) for _ in range(5)] == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"baseline": -1.0}, "baseline"), ({"rise": 1.05}, "rise"), ({"fall": 0.9}, "fall"), ({"window": 0}, "window")],
)
def test_refuses_what_cannot_be_used(arguments: dict[str, float], name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"Drift: {name}: expected"):
        Drift(**({"baseline": 1.0} | arguments))  # type: ignore[arg-type]  # window is refused as given
