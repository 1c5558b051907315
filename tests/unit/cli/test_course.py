"""The time line of a run: decisions in order of time, and all trials at its end."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bestof import BestOf
from bestof.cli import course as module
from bestof.selection.reports.report import Moment


def settled(name: str, problems: int) -> BestOf:
    selector = BestOf(
        name, [("a", lambda n: n), ("b", lambda n: n)], lambda n: n, rounds=2, store="off"
    )
    for problem in range(problems):
        for _ in range(6):
            selector(problem)
    return selector


def test_the_course_counts_decisions_and_trials_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    live = [settled("one", 3), settled("two", 2)]
    monkeypatch.setattr(module, "selectors", lambda: live)
    moments = module.course(0.0)
    assert [one.decisions for one in moments] == [1, 2, 3, 4, 5, 5]
    assert [one.trials for one in moments] == [4, 8, 12, 16, 20, 20]
    assert all(before.at <= after.at for before, after in pairwise(moments))
    assert moments[-1].trial_seconds == sum(one.trial_seconds for one in live)


def test_a_long_course_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    live = [settled("many", 1000)]
    monkeypatch.setattr(module, "selectors", lambda: live)
    moments = module.course(0.0)
    assert 300 < len(moments) <= 401
    assert moments[-1].decisions == 1000


def test_nothing_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "selectors", list)
    (moment,) = module.course(0.0)
    assert (moment.trials, moment.decisions) == (0, 0)
    assert isinstance(moment, Moment)
