"""The one screen of a report: a row for each layer, the dearest first, in numbers that agree."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from bestof import view
from bestof.selection.reports.overview import Row, net, overview
from bestof.selection.reports.report import (
    AlternativeReport,
    Moment,
    ProblemReport,
    Report,
    Run,
    SelectorReport,
    report_from_dict,
)
from bestof.view.overview import _brief, _cut_names, cut, names_of
from bestof.view.words import WORDS, explained_words

RUN = Run("train.py", 40.0, 1.7e9, "a processor, 2 cpus", ("torch 2.13.0",), (Moment(1, 2, 3, 4),))


def timed(
    problem: str, before: float, after: float, calls: int = 0, *places: str, noisy: bool = False
) -> ProblemReport:
    """A problem whose first alternative, `as is`, lost to `fast`."""
    rows = (
        AlternativeReport("as is", "measured", before, None, 3, 1.0),
        AlternativeReport("fast", "chosen", after, None, 3, before / after),
        AlternativeReport("slow", "left out", reason="estimated slower"),
    )
    return ProblemReport(
        problem, "fast", "measured", rows, noisy=noisy, settled_calls=calls, places=places
    )


def layer(problem: str, *inner: tuple[str, str]) -> ProblemReport:
    rows = (
        AlternativeReport("joint", "measured", 0.9, None, 3, 1.0),
        AlternativeReport("apart", "chosen", 0.6, None, 3, 1.5, None, inner),
    )
    return ProblemReport(problem, "apart", "measured", rows, settled_calls=18)


REPORT = Report(
    (
        SelectorReport("layer", 2, (layer("a", ("pass", "a"), ("pass", "b")),), 6, 4.5, 0.5),
        SelectorReport(
            "pass",
            1,
            (
                timed("a", 0.4, 0.3, 20, "conv1"),
                timed("b", 0.4, 0.2, 18, "conv1", noisy=True),
                timed("alone", 0.5, 0.25, 8, "head", "tail"),
            ),
            9,
            2.0,
            0.25,
        ),
    ),
    RUN,
)


def test_a_layer_is_one_row_with_what_was_chosen_inside() -> None:
    first, second = overview(REPORT)
    assert first.key == ("layer", "a")
    assert (first.places, first.inside, first.calls) == (("conv1",), ("fast", "fast"), 18)
    assert (first.noisy, second.noisy) == (True, False)
    assert second.key == ("pass", "alone")
    assert [row.saved for row in (first, second)] == pytest.approx([18 * 0.3, 8 * 0.25])


def test_the_net_is_the_sum_of_the_rows_less_tuning() -> None:
    total = net(REPORT)
    assert total.saved == pytest.approx(sum(row.saved for row in overview(REPORT)))
    assert total.seconds == pytest.approx(18 * 0.3 + 8 * 0.25 - 0.75)
    text = view.render(REPORT)
    assert "saved 7.40 s in 26 settled calls, tuning cost 750 ms in 15 trials: net 6.65 s" in text


def test_an_order_that_nothing_was_measured_beside_has_no_saving() -> None:
    rows = AlternativeReport("as is", "not tried"), AlternativeReport("ours", "chosen")
    ordered = ProblemReport("p", "ours", "forced", rows, settled_calls=20)
    report = Report((SelectorReport("s", 1, (ordered,)),), RUN)
    assert net(report).calls == 0
    text = view.render(report)
    assert re.search(r"^s p +20 +ours$", text, re.MULTILINE)
    assert "saved" not in text
    assert "<span>saved</span>" not in view.render(report, "html")


def test_calls_are_those_of_the_problem_itself() -> None:
    inner = SelectorReport("pass", 1, (timed("a", 0.4, 0.3, 180), timed("b", 0.4, 0.2, 180)))
    outer = SelectorReport("layer", 2, (layer("a", ("pass", "a"), ("pass", "b")),))
    (row,) = overview(Report((outer, inner)))
    assert (row.calls, row.saved) == (18, pytest.approx(18 * 0.3))


def test_refused_calls_save_nothing() -> None:
    apart = layer("a", ("pass", "a"), ("pass", "b"))
    first = replace(timed("a", 0.4, 0.3, 20, "conv1"), refused_calls=5)
    second = replace(timed("b", 0.4, 0.2, 90), refused_calls=60)  # met outside of the layer, too
    report = Report(
        (SelectorReport("layer", 2, (apart,)), SelectorReport("pass", 1, (first, second)))
    )
    (row,) = overview(report)
    assert row.saved == pytest.approx(18 * 0.3 - 5 * 0.1 - 18 * 0.2)
    assert net(report).saved == row.saved
    words = "fast refused 5 of 20 calls because of their operands; as is answered them"
    assert first.refusals == words
    assert f"  {words}" in str(first).splitlines()
    for form in ("text", "html"):
        assert words in " ".join(view.render(report, form).split())
    assert overview(report_from_dict(report.to_dict())) == (row,)


def test_an_unsettled_row_has_no_settled_calls() -> None:
    rows = (AlternativeReport("as is", "measured", 1.0, None, 3, 1.0),)
    problem = ProblemReport("p", None, None, rows, settled_calls=7)
    assert overview(Report((SelectorReport("s", 1, (problem,)),)))[0].calls == 0


@pytest.mark.parametrize(("status", "before"), [("disqualified", None), ("not applicable", 2.0)])
def test_gains_are_counted_from_the_first_that_applies(status: Any, before: float | None) -> None:
    rows = (
        AlternativeReport("first", status),
        AlternativeReport("slow", "measured", 2.0, None, 3),
        AlternativeReport("fast", "chosen", 1.0, None, 3),
    )
    problem = ProblemReport("p", "fast", "measured", rows, settled_calls=10)
    (row,) = overview(Report((SelectorReport("s", 1, (problem,)),)))
    saved = 0.0 if before is None else 10.0
    assert (row.before, row.saved, 10 * problem.gain) == (before, saved, saved)
    assert ("gain" in view.render(Report((SelectorReport("s", 1, (problem,)),)))) == bool(saved)


def test_without_its_first_alternative_a_layer_gains_what_its_passes_gain() -> None:
    rows = (
        AlternativeReport("joint", "not applicable"),
        AlternativeReport("apart", "chosen", 0.6, None, 3, 1.0, None, (("pass", "a"),)),
    )
    problem = ProblemReport("a", "apart", "measured", rows, settled_calls=10, places=("conv1",))
    inner = SelectorReport("pass", 1, (timed("a", 0.4, 0.3, 99, "conv2", "conv1"),))
    (row,) = overview(Report((SelectorReport("layer", 2, (problem,)), inner)))
    assert (row.before, row.after) == (pytest.approx(0.7), 0.6)
    assert (row.saved, row.places) == (pytest.approx(1.0), ("conv1",))


def test_selectors_of_one_name_share_rows_if_they_chose_alike() -> None:
    one, alike, other = timed("p", 0.4, 0.3, 10), timed("p", 0.4, 0.3, 5), timed("p", 0.4, 0.1, 2)
    report = Report(tuple(SelectorReport("s", 1, (problem,)) for problem in (one, alike, other)))
    rows = overview(report)
    assert [(row.key, row.calls) for row in rows] == [(("s", "p"), 15), (("s", "p #2"), 2)]
    assert net(report).saved == pytest.approx(15 * 0.1 + 2 * 0.3)
    assert "s p #2" in view.render(report, "html")


def test_rows_of_one_module_are_told_apart_by_what_differs() -> None:
    training, evaluation = "i8x4x4,k8x3x3,b64,p1 bias", "i8x4x4,k8x3x3,b28,p1 bias frozen"
    forward = tuple(timed(problem, 0.4, 0.3, 9, "conv1") for problem in (training, evaluation))
    selectors = (
        SelectorReport("forward", 1, forward),
        SelectorReport("gradient", 1, (timed(training, 0.4, 0.3, 9, "conv1"),)),
        SelectorReport(
            "norm", 1, (timed("a", 0.4, 0.3, 9, "norm1"), timed("a,a", 1, 1, 9, "norm1"))
        ),
    )
    assert sorted(names_of(overview(Report(selectors)))) == [
        "conv1 (forward, b28 frozen)",
        "conv1 (forward, b64)",
        "conv1 (gradient)",
        "norm1 (a)",
        "norm1 (a,a)",
    ]


def test_problems_without_a_choice_are_not_called_unmet() -> None:
    rows = (AlternativeReport("a", "chosen"), AlternativeReport("b", "left out", reason="slow"))
    report = Report((SelectorReport("s", 1, (ProblemReport("p", "a", "only", rows),)),))
    for shown in (view.render(report), view.render(report, "html")):
        assert "No problem left a choice" in shown
        assert "Nothing was measured" not in shown


def test_the_dearest_comes_first_and_hidden_rows_are_counted() -> None:
    problems = tuple(timed(f"p{i}", 0.2, 0.1, i) for i in range(1, 31))
    text = view.render(Report((SelectorReport("s", 1, problems),)), most=10)
    names = re.findall(r"^s p(\d+)", text, re.MULTILINE)
    assert names == [str(i) for i in range(30, 20, -1)]
    assert "… and 20 more" in text
    assert len(text.splitlines()) < 20


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_lines_fit(width: int) -> None:
    long = timed("x" * 300, 0.2, 0.1, 7, *(f"block.{i}.convolution" * 3 for i in range(3)))
    report = Report((*REPORT.selectors, SelectorReport("long", 1, (long,))))
    table = view.render(report, width=width).split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= max(width, 80)
    assert re.search(r" \+2 ", table)  # the count of like modules is never cut


def test_rows_that_share_a_module_are_told_apart() -> None:
    rows = overview(
        Report(
            (
                SelectorReport("product", 1, (timed("p", 0.2, 0.1, 1, "attention"),)),
                SelectorReport("softmax", 1, (timed("s", 0.2, 0.1, 1, "attention"),)),
            )
        )
    )
    assert names_of(rows) == ["attention (product)", "attention (softmax)"]


def test_rows_of_overlapping_modules_are_told_apart() -> None:
    passes = ("convolution forward", ("a", "b")), ("convolution input gradient", ("b",))
    rows = [
        Row((selector, "i3"), places, None, (), None, None, 0, False, None, None)
        for selector, places in (*passes, ("softmax", ("c",)))
    ]
    assert names_of(rows) == [
        "a +1 (convolution forward)",
        "b (convolution input gradient)",
        "c",
    ]


def test_problems_of_a_store_are_told_apart_when_cut() -> None:
    layers = [
        f"i16x24x24,k16x{k},b8,s1,p{p},d1,g1 bias threads=2" for k, p in (("3x3", 1), ("1x1", 0))
    ]
    rows = [
        Row(("convolution layer", layer), (), None, (), None, None, 0, False, None, None)
        for layer in layers
    ]
    assert [_brief(name) for name in names_of(rows)] == [
        "convolution layer i16x24x24,k16x3x3,b8,p1 bias",
        "convolution layer i16x24x24,k16x1x1,b8 bias",
    ]
    other = Row(
        ("convolution layer", "i3 threads=1"), (), None, (), None, None, 0, False, None, None
    )
    assert names_of([*rows, other])[2] == "convolution layer i3 threads=1"


def test_what_could_run_is_not_called_inapplicable() -> None:
    text = view.render(REPORT, whole=True)
    assert "left out: estimated slower" in text
    assert "not applicable" not in text


def test_noise_is_marked_and_a_faster_rival_explained() -> None:
    rows = (
        AlternativeReport("as is", "measured", 1.0, None, 9, 1.0),
        AlternativeReport("early", "pruned", 0.5, None, 2, 2.0),
        AlternativeReport("won", "chosen", 0.8, None, 9, 1.25),
    )
    problem = ProblemReport("p", "won", "measured", rows, noisy=True)
    text = view.render(Report((SelectorReport("s", 1, (problem,)),)))
    assert "~  won [1]" in text
    assert "[1] early is 38% faster by its 2 trials" in text
    assert "~ noisy: " in text


@pytest.mark.parametrize(
    ("source", "trials", "seconds", "said"),
    [
        ("forced", 9, 0.5, "by order"),
        ("measured", 9, 0.95, "a near-tie"),
        ("measured", 9, 0.5, "times vary"),
        ("measured", 9, 1.5, None),
    ],
)
def test_the_remark_says_why_the_fastest_was_not_chosen(
    source: str, trials: int, seconds: float, said: str | None
) -> None:
    rows = (
        AlternativeReport("won", "chosen", 1.0, None, 9, 1.0),
        AlternativeReport("other", "measured", seconds, None, trials, 1.0),
    )
    remark = ProblemReport("p", "won", source, rows).remark
    assert remark is None if said is None else remark is not None and said in remark


def test_the_json_holds_everything() -> None:
    assert report_from_dict(json.loads(view.render(REPORT, "json"))) == REPORT


def test_a_title_names_program_time_versions_and_processor() -> None:
    title = view.render(REPORT).splitlines()[:2]
    assert title[0] == "train.py ran 40.0 s"
    assert title[1].endswith("torch 2.13.0, a processor, 2 cpus")


def test_every_status_and_heading_is_explained() -> None:
    known = " ".join(word for word, _ in WORDS)
    for word in ("left out", "not applicable", "pruned", "noisy", "before", "after", "gain", "net"):
        assert word in known
    assert max(map(len, explained_words(60).splitlines())) <= 60


@pytest.mark.parametrize(("text", "width", "shown"), [("abc", 3, "abc"), ("abcdef", 5, "ab…ef")])
def test_cut(text: str, width: int, shown: str) -> None:
    assert cut(text, width) == shown


def test_the_name_of_a_pass_is_cut_last() -> None:
    name = "features.19 +1 (convolution input gradient)"
    assert _cut_names([name], len(name)) == [name]
    assert _brief(name) == "features.19 +1 (input gradient)"
    assert _cut_names([_brief(name)], 29) == ["…tures.19 +1 (input gradient)"]


def test_paths_are_cut_where_they_are_alike() -> None:
    parts = ("q_proj", "out_proj", "mlp")
    layers = [_brief(f"vit.layers.0.attention.{part} +15 (product, mm m208)") for part in parts]
    assert layers[0] == "vit.layers.0.attention.q_proj +15 (mm m208)"
    assert _cut_names(layers, 28) == [
        "…ention.q_proj +15 (mm m208)",
        "…tion.out_proj +15 (mm m208)",
        "…attention.mlp +15 (mm m208)",
    ]
    stages = [f"stage{stage}.unit1.body.conv2.conv +2 (forward)" for stage in range(4)]
    assert _cut_names(stages, 36)[1] == "stage1.unit….conv2.conv +2 (forward)"
    assert _cut_names(["fc1 +3 (addmm m23400 k256 n512)"], 24) == ["fc1 +3 (addmm m…56 n512)"]
    assert _cut_names(["selector of a problem +2"], 16) == ["select…roblem +2"]
