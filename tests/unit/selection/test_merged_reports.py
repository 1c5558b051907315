"""Reports of several processes as one."""

from __future__ import annotations

from dataclasses import replace

from bestof.selection.reports.merged import merged
from bestof.selection.reports.report import AlternativeReport, ProblemReport, Report, SelectorReport


def problem(text: str, decision: str | None, calls: int, *places: str) -> ProblemReport:
    rows = (AlternativeReport("a", "measured", 3.0), AlternativeReport("b", "measured", 1.0))
    return ProblemReport(text, decision, None, rows, settled_calls=calls, places=places)


def selector(name: str, *problems: ProblemReport) -> SelectorReport:
    return SelectorReport(name, 1, problems, 3, 0.5, 0.25, 10, 2.0)


def test_selectors_of_one_name_are_summed() -> None:
    one = selector("one", problem("1", "a", 5, "x"), problem("2", None, 0))
    two = selector("one", problem("1", "b", 7, "y", "x"), problem("3", "a", 1))
    found = merged([Report((one,)), Report((two, selector("two")))])
    assert [each.selector for each in found.selectors] == ["one", "two"]
    both = found.selectors[0]
    numbers = both.trials, both.trial_seconds, both.loss_seconds, both.settled_calls
    assert (numbers, both.saved_seconds) == ((6, 1.0, 0.5, 20), 4.0)
    # The choice of the process with most calls.
    assert both.problems[0] == replace(
        two.problems[0], settled_calls=12, places=("x", "y"), earlier_saved=-10.0
    )
    assert both.problems[0].saved == one.problems[0].saved + two.problems[0].saved == 14.0
    assert both.problems[1:] == (one.problems[1], two.problems[1])


def test_a_settled_problem_stands_above_an_unsettled_one() -> None:
    parts = [Report((selector("one", problem("1", name, 0)),)) for name in (None, "a", None)]
    assert merged(parts).selectors[0].problems[0].decision == "a"


def test_selectors_of_another_number_of_stages_stay_apart() -> None:
    one = selector("one")
    found = merged([Report((one,)), Report((replace(one, stages=2),))])
    assert [each.stages for each in found.selectors] == [1, 2]
