"""The summary, made from journals and reports. A stored decision needs no trial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import bestof
import bestof.torch as integration
from bestof.cli.summary import summary_lines
from bestof.selection.call import new_problem
from bestof.selection.reports.report import (
    AlternativeReport,
    ProblemReport,
    Report,
    Run,
    SelectorReport,
)
from bestof.selection.state.journal import DecisionEntry, Journal, TrialEntry
from bestof.selection.store.record import Record
from bestof.torch.dispatch.convolution.sharing import sharing
from bestof.torch.dispatch.overrides import _Made
from bestof.torch.enable import _State
from bestof.torch.ops import table
from bestof.torch.ops.convolution.passes import FORWARD
from bestof.torch.ops.convolution.problem import ConvProblem, LayerProblem
from bestof.torch.rows.call_counts import CallCounts
from bestof.torch.summary import PassSummary, Summary, _summed

CONVOLUTION = ConvProblem((1, 1, 4, 4), (1, 1, 3, 3))
LAYER = LayerProblem(CONVOLUTION, True, True)


def selector(
    name: str,
    problems: Iterable[tuple[Any, str | None, dict[str, float | None]]],
    entries: list[Any],
    loss: float,
) -> Any:
    """What the summary reads of a BestOf."""
    journal = Journal()
    for entry in entries:
        journal.add(entry)
    reports = tuple(
        ProblemReport(
            problem.canonical(),
            decision,
            "measured" if decision else None,
            tuple(
                AlternativeReport(one, "measured", seconds) for one, seconds in seconds_of.items()
            ),
        )
        for problem, decision, seconds_of in problems
    )
    trials = sum(isinstance(entry, TrialEntry) for entry in entries)
    report = SelectorReport(name, 1, reports, trials, 0.0, loss)
    return SimpleNamespace(name=name, journal=journal, report=lambda: report, trials=trials)


def counted(key: Any, calls: int) -> CallCounts[Any]:
    counts: CallCounts[Any] = CallCounts()
    for _ in range(calls):
        counts.count(key)
    return counts


def trials(
    problem: Any, alternative: str, seconds: list[float], stage: int = 0, *, clean: bool = True
) -> list[Any]:
    return [TrialEntry(problem, alternative, stage, one, clean) for one in seconds]


def part(selector: Any, calls: CallCounts[Any]) -> Any:
    """What the summary reads of an override of a forward pass."""
    return SimpleNamespace(
        operation=FORWARD, selector=selector, calls=calls, decided_above=lambda _problems: ()
    )


def summed(parts: Sequence[Any], group: Any = None, shared: int = 0) -> Summary:
    layer: Any = SimpleNamespace(
        layer=group or selector("convolution layer", [], [], 0.0),
        sharing_calls=counted(LAYER, shared),
    )
    above: Any = SimpleNamespace(selector=layer.layer, sharing=lambda: sharing(layer))
    return _summed(parts, [above])


def of_forward(forward: Any, calls: int) -> Summary:
    return summed([part(forward, counted(CONVOLUTION, calls))])


def test_nothing_was_enabled() -> None:
    assert integration.summary() == Summary(0, (), 0.0, 0.0, 0)


def test_settled_calls_save_and_trials_do_not() -> None:
    seconds: dict[str, float | None] = {"as is": 5.0, "im2row": 2.0, "fft": None}
    tried = trials(CONVOLUTION, "as is", [5.0, 5.0]) + trials(CONVOLUTION, "im2row", [2.0, 2.0])
    entries = [*tried, DecisionEntry(CONVOLUTION, "im2row", "measured")]
    forward = selector("convolution forward", [(CONVOLUTION, "im2row", seconds)], entries, 6.0)
    got = of_forward(forward, calls=14)
    row = PassSummary("forward", CONVOLUTION.canonical(), "im2row", 5.0, 2.0, 14)
    assert got == Summary(1, (row,), seconds_saved=30.0, seconds_tuning=6.0, trials=4)


def test_refused_calls_save_nothing() -> None:
    seconds: dict[str, float | None] = {"as is": 5.0, "winograd": 2.0}
    forward = selector("convolution forward", [(CONVOLUTION, "winograd", seconds)], [], 0.0)
    report = forward.report()
    (problem,) = report.problems
    refused = replace(report, problems=(replace(problem, refused_calls=4),))
    forward.report = lambda: refused
    got = of_forward(forward, calls=14)
    assert (got.seconds_saved, got.passes[0].refused) == (30.0, 4)


def test_an_unsettled_problem_saves_nothing() -> None:
    seconds: dict[str, float | None] = {"as is": 5.0, "im2row": 2.0}
    tried = trials(CONVOLUTION, "as is", [5.0])
    # The selector's own report has the loss against what leads so far.
    forward = selector("convolution forward", [(CONVOLUTION, None, seconds)], tried, 5.0 - 2.0)
    got = of_forward(forward, calls=9)
    assert (got.passes[0].chosen, got.passes[0].seconds_chosen, got.seconds_saved) == (
        None,
        None,
        0.0,
    )
    assert got.seconds_tuning == 5.0 - 2.0


@pytest.mark.parametrize(("calls", "rare"), [(1, True), (24, True), (25, False)])
def test_an_unsettled_problem_of_few_calls_is_rare(calls: int, rare: bool) -> None:
    seconds: dict[str, float | None] = {"as is": 5.0}
    unsettled = selector("convolution forward", [(CONVOLUTION, None, seconds)], [], 0.0)
    settled = selector("convolution forward", [(CONVOLUTION, "as is", seconds)], [], 0.0)
    assert [row.rare for row in of_forward(unsettled, calls).passes] == [rare]
    assert [row.rare for row in of_forward(settled, calls).passes] == [False]


def test_a_summary_names_the_savings_it_does_not_count() -> None:
    problem = ProblemReport("i1", None, None, (AlternativeReport("as is", "measured", 1.0),))
    run = Run("x.py", 1.0, 0.0, "cpu")
    report = Report((SelectorReport("forward", 1, (problem,)),), run)
    for keeps in (False, True):
        lines = summary_lines(report, Summary(1, (), 0.0, 0.0, 1, keeps), None)
        assert any("freed memory" in line and "not counted" in line for line in lines) == keeps


def test_a_summary_knows_whether_freed_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for keeps in (False, True):
        monkeypatch.setattr(_State, "keeps_freed", keeps)
        assert integration.summary().keeps_freed == keeps
    monkeypatch.setattr(_State, "keeps_freed", False)


def test_convolutions_that_differ_in_bias_or_gradient_layout_alone_are_one_layer() -> None:
    idle = selector("convolution forward", [], [], 0.0)
    variants = (
        CONVOLUTION,
        CONVOLUTION._replace(bias=True),
        CONVOLUTION._replace(grad_layout="other"),
    )
    assert summed([part(idle, counted(one, 1)) for one in variants]).layers == 1


def test_a_trial_of_the_group_is_not_counted_again() -> None:
    # Two passes of each that count, and one that contains trials of passes, which these have booked
    # themselves.
    entries = [
        *trials(LAYER, "independent", [100.0], clean=False),
        *trials(LAYER, "independent", [100.0], stage=1, clean=False),
        *trials(LAYER, "independent", [8.0, 8.0]),
        *trials(LAYER, "independent", [12.0, 12.0], stage=1),
        *trials(
            LAYER, "shared im2row", [6.0, 6.0, 6.0]
        ),  # the last of them is a forward without its backward
        *trials(LAYER, "shared im2row", [6.0, 6.0], stage=1),
    ]
    seconds: dict[str, float | None] = {"independent": 20.0, "shared im2row": 12.0}
    group = selector("convolution layer", [(LAYER, "shared im2row", seconds)], entries, 200.0)
    forward = part(selector("convolution forward", [], [], 6.0), counted(CONVOLUTION, 1))
    got = summed([forward], group, shared=7)
    assert got.seconds_tuning == pytest.approx(6.0 + 2 * (20.0 - 12.0))
    assert got.seconds_saved == pytest.approx((7 - 2) * (20.0 - 12.0))
    assert got.trials == len(entries)


class Kept:
    """A store in a dictionary."""

    url = "memory:"

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str, str], Record] = {}

    def load(self, selector: str, problem: str, host: str) -> Record | None:
        return self.kept.get((selector, problem, host))

    def save(self, record: Record) -> None:
        self.kept[record.selector, record.problem, record.host] = record

    def pinned(self, selector: str, problem: str | None, host: str | None = None) -> str | None:
        return None


def test_a_stored_decision_needs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    # A decision from noisy samples is verified by a race. Whether this machine was noisy must not
    # decide the test.
    monkeypatch.setattr(new_problem, "is_noisy", lambda evidence, decision: False)
    bestof.use_store(Kept())
    x, weight = torch.randn(1, 2, 6, 6), torch.randn(2, 2, 3, 3)
    with integration.enabled(), torch.no_grad():
        for _ in range(700):  # Race ends after 60 rounds of 7 alternatives
            torch.conv2d(x, weight)
    first = integration.summary()
    assert first.trials > 0
    assert first.passes[0].calls == 700
    monkeypatch.setattr(_Made, "overrides", ())
    for one in table.OPERATIONS:
        monkeypatch.delitem(vars(one), "_row_selector", raising=False)
    with integration.enabled(), torch.no_grad():
        for _ in range(5):
            torch.conv2d(x, weight)
    again = integration.summary()
    assert again.trials == 0
    assert again.seconds_tuning == 0.0
    (row,) = again.passes
    assert (row.name, row.problem, row.chosen) == (
        "forward",
        *[first.passes[0].problem, first.passes[0].chosen],
    )
    assert (row.seconds_as_is, row.seconds_chosen) == (
        first.passes[0].seconds_as_is,
        first.passes[0].seconds_chosen,
    )
    assert row.calls == 5
    assert row.seconds_as_is is not None
    assert row.seconds_chosen is not None
    assert again.seconds_saved == pytest.approx(5 * (row.seconds_as_is - row.seconds_chosen))
