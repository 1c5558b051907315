"""Names with control characters, or very long names, are shown as text in every format."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from bestof import view
from bestof.selection.reports.report import (
    AlternativeReport,
    ProblemReport,
    Report,
    SelectorReport,
    report_from_dict,
)
from bestof.selection.state.earlier_race import EarlierRace
from bestof.selection.store.record import Record
from bestof.view.printable import printable

CLEAR, TITLE, RETURN = "\x1b[2J", "\x9d0;owned\x07", "a\rb"
OVERRIDE, SURROGATE = "x\u202ey", "\ud800"
HOSTILE = [CLEAR, TITLE, RETURN, OVERRIDE, SURROGATE, "tab\tline\nend", "\x00"]
LONG = "n" * 5000


def report_of(name: str) -> Report:
    inner = AlternativeReport(name, "chosen", 1e-3, None, 3, 1.0)
    row = AlternativeReport(
        name, "disqualified", None, None, 1, None, f"Error: {name}", ((name, "inside"),)
    )
    races = (EarlierRace(name, 1.0, 2.0),)
    return Report(
        (
            SelectorReport(name, 1, (ProblemReport(name, name, "measured", (inner, row), races),)),
            SelectorReport(
                f"{name}!", 1, (ProblemReport("inside", None, None, (inner,), why=name),)
            ),
        )
    )


@pytest.mark.parametrize("rich", [True, False])
@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_that_steers_a_terminal_is_printed(
    name: str, rich: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not rich:
        monkeypatch.setattr(view, "find_spec", lambda name: None)
    view.print_report(report_of(name))
    view.print_report(report_of(name), whole=True)
    view.print_chosen(report_of(name))
    view.print_records([Record(name, name, "host", name, (), 0.0)], "fake:", 0.0)
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert printable(name) in shown.replace("\n", "")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_notebook_and_print_get_the_name_as_text(name: str) -> None:
    for selector in report_of(name).selectors:
        for shown in (selector, *selector.problems):
            assert str(shown).replace("\n", "").isprintable()
            assert shown._repr_html_().isprintable()


@pytest.mark.parametrize("name", HOSTILE)
def test_pages_and_json_hold_the_name_as_text(name: str) -> None:
    page = view.render(report_of(name), "html")
    assert page.replace("\n", "").isprintable()
    parser = Words()
    parser.feed(page)
    assert any(printable(name, None) in word for word in parser.words)
    text = view.render(report_of(name), "json")
    assert text.replace("\n", "").isprintable()
    assert report_from_dict(json.loads(text)) == report_of(name)


def test_a_long_name_is_shortened_in_tables_and_whole_elsewhere() -> None:
    for width in (80, 120):
        lines = view.render(report_of(LONG), width=width, whole=True).splitlines()
        assert max(map(len, lines)) <= width
        assert len(lines) < 200
    assert "5,000 characters" in printable(LONG)
    assert LONG in view.render(report_of(LONG), "json")
    assert LONG in view.render(report_of(LONG), "html")


def test_long_names_that_differ_in_the_middle_stay_apart() -> None:
    other = LONG[:2500] + "m" + LONG[2501:]
    assert printable(LONG) != printable(other)
    assert printable(LONG) == printable(LONG)


def test_a_reason_of_several_lines_becomes_one() -> None:
    rows = (AlternativeReport("a", "disqualified", reason="one\n  two"),)
    report = Report((SelectorReport("s", 1, (ProblemReport("p", None, None, rows),)),))
    assert "disqualified: one two" in view.render(report, width=120, whole=True)


class Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_data(self, data: str) -> None:
        self.words.append(data)
