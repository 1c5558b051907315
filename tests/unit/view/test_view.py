"""Reports: complete, in lines that fit, in every format."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from reports import CIRCLE, EMPTY, LONG, NESTED, PARTLY, REASON

from bestof import view
from bestof.errors import InvalidArgument
from bestof.selection.duration import duration
from bestof.selection.reports.report import (
    AlternativeReport,
    ProblemReport,
    Report,
    SelectorReport,
    report_from_dict,
)
from bestof.selection.state.earlier_race import EarlierRace
from bestof.view.quantity import age, plural, ratio
from bestof.view.tree import Node, decision_trees
from bestof.view.words import NOT_NESTED, NOTHING


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_text_fits_and_nothing_is_cut(width: int) -> None:
    text = view.render(NESTED, width=width, whole=True)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    assert squeezed(LONG) in squeezed(text)
    assert "\x1b" not in text
    words = squeezed(
        re.sub(
            r"(?m)^.*\n",
            lambda line: line[0][-(width - 50) :] if "Wrong" in line[0] else line[0],
            text,
        )
    )
    for word in re.findall(r"\w+", REASON):
        assert word in words


def test_rows_tell_time_spread_trials_speed_up_and_status() -> None:
    lines = [
        " ".join(line.split()) for line in view.render(NESTED, width=120, whole=True).splitlines()
    ]
    assert "as is 4.21 ms ± 100 us 10 1.00x measured" in lines
    assert "* winograd4 1.32 us ± 30.0 ns 10 3189.39x chosen" in lines
    assert "fft 2.00 s 2 0.00x pruned" in lines
    assert "not applicable: direct" in lines
    assert "b [unsettled]" in lines
    assert "<winograd6> [bold]" in view.render(NESTED, width=120, whole=True)
    assert "never called" not in view.render(NESTED, whole=True)


def test_the_whole_report_tells_the_modules_and_all_footnotes() -> None:
    settled, unsettled = NESTED.selectors[1].problems[0], NESTED.selectors[0].problems[1]
    races = (EarlierRace("as is", 1e-3, 3e-3), EarlierRace("fft", 1e-3, 5e-4))
    settled = replace(
        settled, places=("conv1", "head"), settled_calls=9, refused_calls=2, history=races
    )
    unsettled = replace(unsettled, why="too many searches at once")
    report = Report((SelectorReport("layer", 1, (settled, unsettled)),))
    for text in (view.render(report, width=100, whole=True), str(report)):
        words = " ".join(text.split())
        assert "met in conv1, head" in words
        assert "too many searches at once" in words
        assert all(str(race) in words for race in races)
        assert "winograd4 refused 2 of 9 calls because of their operands" in words


def test_numbers_stand_under_one_another() -> None:
    lines = view.render(NESTED, width=120, whole=True).splitlines()
    rows = [
        line for line in lines if re.search(r"\d (us|ms|s) .*x  (chosen|measured|pruned)$", line)
    ]
    ends = {
        name: [line.index("x  ") for line in rows if name in line]
        for name in ("as is", "winograd4", "fft")
    }
    assert len({position[0] for position in ends.values()}) == 1


def test_the_tree_shows_what_was_chosen_inside_what() -> None:
    tree = view.render(NESTED, width=300, whole=True).split("decision tree")[1].splitlines()[1:]
    assert tree == [
        f"layer {LONG} → shared",
        "├── * shared  12.3 ms",
        "│   └── forward a → winograd4",
        "│       ├── * winograd4  1.32 us",
        "│       ├── as is  4.21 ms",
        "│       ├── fft  2.00 s pruned",
        "│       ├── direct  not applicable",
        "│       └── <winograd6> [bold]  disqualified",
        "└── independent  18.3 ms",
        "    ├── forward a → winograd4, shown above",
        "    └── gone z → not in this report",
        "layer b → unsettled",
    ]


def test_the_tree_has_a_line_for_problems_without_inner_ones() -> None:
    tree = view.render(PARTLY, width=100, whole=True).split("decision tree")[1].splitlines()[1:]
    assert tree == [
        "layer alone → independent  [only]",
        "layer tried → fast",
        "├── * fast  5.00 ms",
        "│   └── pass tried → fast",
        "│       ├── * fast  1.00 ms",
        "│       └── as is  2.00 ms",
        "└── as is  10.0 ms",
        "layer <forced> → shared  [forced]",
        "layer new → unsettled",
        "pass alone → fast  2.00 ms  2.00x",
        "pass <forced> → fast  3.00 ms  2.00x",
    ]


def test_the_tree_marks_noisy_decisions() -> None:
    layer, passes = PARTLY.selectors[2], PARTLY.selectors[0]
    noisy = replace(passes, problems=tuple(replace(one, noisy=True) for one in passes.problems))
    shaky = Report((noisy, layer))
    for drawn in (view.render(shaky, width=100, whole=True), view.render(shaky, "html")):
        tree = drawn.split("decision tree")[1]
        assert tree.count("fast, noisy") == 3
        assert "independent, noisy" not in tree


def test_the_page_has_a_line_for_problems_without_inner_ones() -> None:
    parser = _Balanced()
    parser.feed(view.render(PARTLY, "html"))
    words = [" ".join(word.split()) for word in parser.words]
    shown = words[words.index("decision tree") + 1 : words.index("search")]
    tree = " ".join(word for word in shown if word)
    assert tree == (
        "layer alone → independent [only] "
        "layer tried → fast * fast 5.00 ms pass tried → fast * fast 1.00 ms as is 2.00 ms as is "
        "10.0 ms layer <forced> → shared [forced] layer new → unsettled pass alone → fast 2.00 "
        "ms 2.00x pass <forced> → fast 3.00 ms 2.00x"
    )


def test_circles_end() -> None:
    trees = decision_trees(CIRCLE)
    assert [(tree.selector, tree.shown) for tree in trees] == [("first", "here"), ("self", "here")]

    def leaves(node: Node) -> list[tuple[str, str]]:
        inner = [
            leaf for branch in node.branches for child in branch.nodes for leaf in leaves(child)
        ]
        return inner or [(node.selector, node.shown)]

    assert [leaves(tree) for tree in trees] == [[("first", "cycle")], [("self", "cycle")]]
    assert "first p → only, contains itself" in view.render(CIRCLE, whole=True)


def nested(levels: int) -> Report:
    problems = tuple(
        ProblemReport(
            str(level),
            "a",
            "measured",
            (AlternativeReport("a", "chosen", 1.0, children=(("s", str(level + 1)),)),),
        )
        for level in range(levels)
    )
    return Report((SelectorReport("s", 1, problems),))


def test_deep_trees_are_drawn_and_deeper_ones_refused_in_words() -> None:
    for shown in (view.render(nested(100), whole=True), view.render(nested(100), "html")):
        assert "99" in shown
    assert view.render(nested(3000)).startswith("layer or problem")
    for format in ("text", "html"):
        with pytest.raises(InvalidArgument, match="more than 100 problems are nested"):
            view.render(nested(3000), format, whole=True)  # type: ignore[arg-type]


def test_without_nesting_there_is_no_tree() -> None:
    flat = Report(NESTED.selectors[1:])
    assert decision_trees(flat) == ()
    assert "decision tree" not in view.render(flat, whole=True)
    assert "decision tree" not in view.render(flat, "html")


def test_color_adds_escape_sequences_and_nothing_else() -> None:
    colored = view.render(NESTED, width=90, color=True, whole=True)
    assert "\x1b[" in colored
    plain = "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", colored).splitlines())
    assert plain == view.render(NESTED, width=90, whole=True)


@pytest.mark.parametrize("report", [NESTED, PARTLY, CIRCLE, EMPTY])
def test_json_comes_back_as_it_went(report: Report) -> None:
    assert report_from_dict(json.loads(view.render(report, "json"))) == report


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"selectors": 3},
        {"selectors": [{}]},
        {"selectors": [{"selector": "s", "stages": 1, "problems": [], "more": 1}]},
        {"selectors": [{"problems": [{"alternatives": [{"name": "n", "status": "wonderful"}]}]}]},
    ],
)
def test_other_files_than_reports_are_refused(content: object) -> None:
    with pytest.raises(InvalidArgument, match="not the content of a report"):
        report_from_dict(content)


class _Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.mark.parametrize("report", [NESTED, PARTLY, CIRCLE, EMPTY])
def test_html_is_well_formed_and_needs_nothing_else(report: Report) -> None:
    page = view.render(report, "html")
    parser = _Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert "http" not in page
    for selector in report.selectors:
        for problem in selector.problems:
            assert any(problem.problem in word for word in parser.words)
            for alternative in problem.alternatives:
                assert any(alternative.name in word for word in parser.words)


def test_a_terminal_that_does_not_tell_its_width_has_a_usual_one() -> None:
    ends = os.openpty()  # of no columns
    try:
        with open(ends[1], "w", encoding="utf-8", closefd=False) as terminal:
            assert view.terminal_width(terminal) == 100
    finally:
        for end in ends:
            os.close(end)


def test_nothing_measured_is_said_so() -> None:
    assert view.render(EMPTY) == "Nothing was measured yet: no selector has met a problem."


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'pdf'"):
        view.render(EMPTY, "pdf")  # type: ignore[arg-type]  # what a caller without types may do


def test_without_rich_the_plain_text_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(view, "find_spec", lambda name: None)
    assert (
        view.render(NESTED, whole=True)
        == f"{NESTED}\n(pip install 'bestof-select[view]' for tables and colours)"
    )
    view.print_report(NESTED, whole=True)
    assert capsys.readouterr().out == view.render(NESTED, whole=True) + "\n"


def test_print_report_into_a_pipe_is_the_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    view.print_report(NESTED, whole=True)
    assert capsys.readouterr().out == view.render(NESTED, whole=True) + "\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.0, "0 s"),
        (12.345, "12.3 s"),
        (0.9999, "1.00 s"),
        (0.99949, "999 ms"),
        (9.996e-3, "10.0 ms"),
        (99.96e-6, "100 us"),
        (4.2e-7, "420 ns"),
        (1e-11, "0.01 ns"),
        (4321.0, "4321 s"),
        (-0.5, "-500 ms"),
    ],
)
def test_durations_have_three_digits_and_a_unit(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_other_quantities() -> None:
    assert [age(0), age(61), age(7200), age(200000)] == [
        "just now",
        "1 minute",
        "2 hours",
        "2 days",
    ]
    assert [plural(1, "trial"), plural(1234, "trial")] == ["1 trial", "1,234 trials"]
    assert [ratio(None), ratio(2.345)] == ["", "2.35x"]


def test_the_tree_alone_shows_only_the_choices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view.print_chosen(NESTED)
    text = " ".join(capsys.readouterr().out.split())  # the long problem is folded
    assert "→ shared 12.3 ms 1.49x" in text
    assert "forward a → winograd4" in text
    assert "fft" not in text
    assert "gone" not in text


def test_the_tree_of_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    view.print_chosen(EMPTY)
    assert capsys.readouterr().out.strip() == NOTHING


def test_the_tree_alone_shows_all_problems_of_the_selectors_that_nest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view.print_chosen(PARTLY)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "layer alone → independent  [only]",
        "layer tried → fast  5.00 ms  2.00x",
        "└── pass tried → fast  1.00 ms  2.00x",
        "layer <forced> → shared  [forced]",
        "layer new → unsettled",
        "pass alone → fast  2.00 ms  2.00x",
        "pass <forced> → fast  3.00 ms  2.00x",
    ]


def test_without_nesting_the_tree_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    view.print_chosen(Report(NESTED.selectors[1:]))
    assert capsys.readouterr().out.strip() == NOT_NESTED
