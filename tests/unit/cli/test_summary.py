"""The summary at the end of a run: what it counts, and names that it must not print raw."""

from __future__ import annotations

from dataclasses import dataclass

from bestof.cli.summary import summary_lines
from bestof.selection.reports.report import AlternativeReport, ProblemReport, Report, SelectorReport
from bestof.selection.state.earlier_race import EarlierRace


@dataclass(frozen=True)
class Pass:
    name: str = "forward"
    problem: str = "p"
    chosen: str | None = "winograd4"
    seconds_as_is: float | None = 2.0
    seconds_chosen: float | None = 1.0
    calls: int = 7
    rare: bool = False


@dataclass(frozen=True)
class Lowered:
    before: int = 64
    now: int = 2
    limit: str = "the quota of its control group is 2 processors"


@dataclass(frozen=True)
class Tuned:
    layers: int = 1
    passes: tuple[Pass, ...] = (Pass(),)
    seconds_saved: float = 7.0
    seconds_tuning: float = 0.5
    trials: int = 4
    keeps_freed: bool = True
    left_out: tuple[tuple[str, str], ...] = ()
    threads: Lowered | None = None


def test_what_is_left_out_is_told() -> None:
    torch = Tuned(left_out=(("product", "PyTorch refuses a kernel"),))
    lines = summary_lines("train.py", 13.0, Report(()), torch, None)
    assert any("product stays PyTorch's own: PyTorch refuses a kernel" in line for line in lines)


def test_lowered_threads_are_told() -> None:
    lines = summary_lines("train.py", 13.0, Report(()), Tuned(threads=Lowered()), None)
    (told,) = [line for line in lines if line.split()[0] == "threads"]
    assert told.endswith("2 in place of 64: the quota of its control group is 2 processors")


def test_the_word_saved_names_what_it_counts() -> None:
    lines = summary_lines("train.py", 13.0, Report(()), Tuned(), None)
    (saved,) = [line for line in lines if line.split()[0] == "saved"]
    assert "7.00 s of the 20.0 s that PyTorch's own kernels would have taken" in saved
    assert "settled calls" in saved
    (memory,) = [line for line in lines if line.split()[0] == "memory"]
    assert "what this saves is not counted" in memory


def test_names_are_shown_as_text_and_long_ones_do_not_widen_the_column() -> None:
    rows = (AlternativeReport("\x1b[31mred", "chosen", 1.0),)
    problem = ProblemReport("n", "\x1b[31mred", "measured", rows)
    selectors = (SelectorReport("s" * 5000, 1, (problem,), 1), SelectorReport("t", 1, (problem,)))
    lines = summary_lines("a\x1b[2J.py", 1.0, Report(selectors), None, "sqlite:///x")
    assert all(line.isprintable() for line in lines)
    assert any("\\x1b[31mred 1" in line for line in lines)
    assert max(map(len, lines)) < 250


def test_problems_that_were_searched_again_are_counted() -> None:
    rows = (AlternativeReport("a", "chosen", 1.0),)
    steady = ProblemReport("n", "a", "measured", rows)
    drifted = ProblemReport("m", "a", "measured", rows, (EarlierRace("b", 1.0, 2.0),))

    def drift(*problems: ProblemReport) -> list[str]:
        report = Report((SelectorReport("s", 1, problems, 9),))
        lines = summary_lines("train.py", 1.0, report, None, None)
        return [line.strip() for line in lines if line.split()[0] == "drift"]

    assert drift(steady) == []
    (line,) = drift(steady, drifted)
    assert line.endswith("1 problem searched again: the winner's time had changed")


def test_a_store_that_is_not_written_keeps_nothing() -> None:
    def last(written: bool) -> list[str]:
        url = "postgresql://ada@db/decisions"
        return summary_lines("x.py", 1.0, Report(()), Tuned(), url, written=written)[-1].split()

    assert last(True) == ["kept", "in", "postgresql://ada@db/decisions"]
    assert last(False)[:3] == ["not", "kept", "postgresql://ada@db/decisions"]
