"""Why a recorded alternative was chosen, as `bestof store explain` tells it."""

from __future__ import annotations

import pytest

from bestof.selection.policies import Race
from bestof.selection.reports.explanation import explain
from bestof.selection.store.record import Evidence, Record

LATE = (2.0, 1.0, 2.1, 1.9, 1.01, 2.0, 1.9, 2.0)
STEADIER = (1.2, 2.0, 1.23, 1.22, 2.2, 1.25, 2.0, 1.21)


@pytest.mark.parametrize(
    ("rival", "decision", "why"),
    [
        (STEADIER, "a", "a has lower least times than b, whose median is 34.7 % lower: the times "),
        ((1.2,) * 8, "b", "b has the lowest median, "),
    ],
)
def test_least_times_are_named_where_they_decide(
    rival: tuple[float, ...], decision: str, why: str
) -> None:
    search = Race(tie=0.03, confidence=0.97, max_trials=8).start(["a", "b"])
    for seconds in zip(LATE, rival, strict=True):
        for position, one in enumerate(seconds):
            search.tell(position, one)
    assert search.winner == ["a", "b"].index(decision)
    evidence = (Evidence("a", "1", LATE), Evidence("b", "1", rival))
    (found,) = explain([Record("s", "1", "here", decision, evidence, 0.0)], [], "s", None)
    assert found.why.startswith(why), found.why
