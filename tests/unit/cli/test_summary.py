"""The end of a run: what it counts, and names that it must not print raw."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest

from bestof.cli.summary import summary_lines
from bestof.selection.reports.report import (
    AlternativeReport,
    ProblemReport,
    Report,
    Run,
    SelectorReport,
)
from bestof.selection.state.earlier_race import EarlierRace

RUN = Run("train.py", 13.0, 1.7e9, "a processor", ("torch 2.13.0",))


@dataclass(frozen=True)
class Lowered:
    before: int = 64
    now: int = 2
    limit: str = "the quota of its control group is 2 processors"


class Held(NamedTuple):
    scratch: int
    weights: int
    matrices: int
    limit: int | None


UNBOUND = Held(0, 0, 0, None)


@dataclass(frozen=True)
class Tuned:
    keeps_freed: bool = True
    left_out: tuple[tuple[str, str], ...] = ()
    threads: Lowered | None = None
    held: Held = UNBOUND


def problem(name: str, calls: int = 0, *history: EarlierRace) -> ProblemReport:
    rows = (AlternativeReport("a", "measured", 2.0, None, 2), AlternativeReport("b", "chosen", 1.0))
    return ProblemReport(name, "b", "measured", rows, history, settled_calls=calls)


def ended(*problems: ProblemReport, trials: int = 4, loss: float = 0.5) -> Report:
    return Report((SelectorReport("s", 1, problems, trials, 9.0, loss),), RUN)


def fact(lines: list[str], label: str) -> str:
    (found,) = [line for line in lines if line.split()[0] == label]
    return found.split(label, 1)[1].strip()


def test_what_is_left_out_is_told() -> None:
    torch = Tuned(left_out=(("product", "PyTorch refuses a kernel"),))
    lines = summary_lines(Report((), RUN), torch, None)
    assert any("product stays PyTorch's own: PyTorch refuses a kernel" in line for line in lines)


def test_the_memory_bound_is_told_with_what_is_held() -> None:
    torch = Tuned(held=Held(3 * 2**20, 2**19, 0, 256 * 2**20))
    lines = summary_lines(ended(problem("p", 7)), torch, None)
    assert fact(lines, "bound") == ("256 MiB: scratch 3.0, packed weights 0.5, kept matrices 0.0")
    unbound = summary_lines(ended(problem("p", 7)), Tuned(), None)
    assert not any(line.split()[0] == "bound" for line in unbound)


def test_what_the_store_has_spared_is_told() -> None:
    stored = replace(problem("p", 7), source="stored")
    lines = summary_lines(ended(stored, problem("q", 7)), Tuned(), None)
    # Two trials of 2 s each, where the winner takes 1 s.
    assert fact(lines, "stored") == "1 decision of earlier runs, whose trials had cost 2.00 s"
    alone = summary_lines(ended(problem("q", 7)), Tuned(), None)
    assert not any(line.split()[0] == "stored" for line in alone)


def test_lowered_threads_are_told() -> None:
    lines = summary_lines(ended(problem("p", 7)), Tuned(threads=Lowered()), None)
    assert fact(lines, "threads") == (
        "2 in place of 64: the quota of its control group is 2 processors"
    )


def test_saved_tuning_and_net_agree() -> None:
    lines = summary_lines(ended(problem("p", 7)), Tuned(), None)
    assert fact(lines, "saved") == (
        "7.00 s in 7 settled calls; with the first alternatives in these, the whole run would have "
        "taken 20.0 s"
    )
    assert fact(lines, "tuning") == "cost 500 ms, 3.8 % of the run, in 4 trials"
    assert fact(lines, "net") == "6.50 s: saved, less what tuning cost"
    assert "what this saves is not counted" in fact(lines, "memory")


def test_an_unsettled_row_tells_if_trials_waited_for_their_budget() -> None:
    rows = tuple(AlternativeReport(name, "measured", 1.0, None, 1) for name in "ab")
    report = ended(ProblemReport("a layer", None, None, rows))
    for waited, told in (("", ""), ("their budget", ", and trials that waited for their budget")):
        lines = summary_lines(report, None, None, waited_for=waited)
        assert fact(lines, "unsettled") == f"1 row: few calls so far{told}"
    untried = ended(ProblemReport("a layer", None, None, rows), trials=0)
    assert fact(summary_lines(untried, None, None), "tuning") == "no trial was made"


@pytest.mark.parametrize(
    ("sources", "told"),
    [
        (["stored", "stored"], "no trial was made: earlier runs have decided"),
        (["forced", "pinned"], "no trial was made: orders decide"),
        (["locked", "not in the lock"], "no trial was made: the lock decides"),
        (["stored", "only"], "no trial was made: earlier runs have decided"),
        (["stored", "forced"], "no trial was made"),
        (["stored", None], "no trial was made"),
        (["window"], "no trial was made"),
        ([], "no trial was made"),
    ],
)
def test_why_no_trial_was_made_is_told(sources: list[str | None], told: str) -> None:
    problems = [
        replace(problem(f"p{n}", 7), source=source, decision="b" if source else None)
        for n, source in enumerate(sources)
    ]
    torch = Tuned(left_out=(("product", "PyTorch refuses a kernel"),))
    lines = summary_lines(ended(*problems, trials=0), torch, None)
    assert fact(lines, "tuning") == told


def test_names_are_shown_as_text_and_long_ones_do_not_widen_the_column() -> None:
    rows = (AlternativeReport("\x1b[31mred", "chosen", 1.0),)
    red = ProblemReport("n", "\x1b[31mred", "measured", rows)
    selectors = (SelectorReport("s" * 5000, 1, (red,), 1), SelectorReport("t", 1, (red,)))
    run = Run("a\x1b[2J.py", 1.0, 0.0, "cpu\x1b")
    lines = summary_lines(Report(selectors, run), None, "sqlite:///x")
    assert all(line.isprintable() for line in lines)
    assert any("\\x1b[31mred" in line for line in lines)
    assert max(map(len, lines)) <= 100


def test_problems_that_were_searched_again_are_counted() -> None:
    def drift(*problems: ProblemReport) -> list[str]:
        lines = summary_lines(ended(*problems), None, None)
        return [line.strip() for line in lines if line.split()[0] == "drift"]

    drifted = problem("m", 0, EarlierRace("b", 1.0, 2.0))
    assert drift(problem("n")) == []
    (line,) = drift(problem("n"), drifted)
    assert line.endswith("1 problem searched again: the winner's time had changed")


def test_many_layers_stay_on_one_screen() -> None:
    lines = summary_lines(ended(*(problem(f"p{i}", 1) for i in range(300))), Tuned(), None)
    assert len(lines) < 25
    assert any("and 288 more" in line for line in lines)


def test_a_store_that_is_not_written_keeps_nothing() -> None:
    url = "postgresql://ada@db/decisions"
    report = ended(problem("p"))
    assert f"kept in  {url}" in "\n".join(summary_lines(report, None, url))
    told = "\n".join(summary_lines(report, None, url, written=False))
    assert f"not kept  {url}" in told
    assert "kept in" not in told


def test_a_program_without_a_selector_had_nothing_to_choose() -> None:
    (line,) = summary_lines(Report((), RUN), None, None)
    assert line.endswith("no selector was called, so there was nothing to choose")


def test_a_program_whose_problems_left_no_choice_did_call_selectors() -> None:
    only = ProblemReport("p", "a", "only", (AlternativeReport("a", "chosen"),))
    (line,) = summary_lines(Report((SelectorReport("s", 1, (only,)),), RUN), None, None)
    assert "no problem left a choice" in line
