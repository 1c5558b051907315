"""What notebooks show of selectors, reports and explanations."""

from __future__ import annotations

import time

import bestof
from bestof import BestOf
from bestof.html_table import html_table
from bestof.selection.reports.explanation import explain
from bestof.selection.store.record import Evidence, Record


def selector(name: str) -> BestOf:
    made = BestOf(
        name,
        [("wait", lambda n: time.sleep(0.001)), ("<none>", lambda n: None)],
        lambda n: n,
        store="off",
    )
    for _ in range(12):
        made(3)
    return made


def test_selectors_and_reports_are_tables() -> None:
    made = selector("shown")
    table = made._repr_html_()
    assert table == made.report()._repr_html_()
    assert "<b>shown</b>" in table
    assert "&lt;none&gt;" in table
    problem = made.explain(3)._repr_html_()
    assert "<b>&lt;none&gt;</b>" in problem
    assert "wait" in problem


def test_the_report_of_the_process_is_text_always() -> None:
    made = selector("of the process")
    text = bestof.report()
    assert isinstance(text, str)
    assert "of the process 3" in text
    shown = text._repr_html_()  # type: ignore[attr-defined]
    assert "of the process 3" in shown
    assert "<script" not in shown
    del made


def test_an_explanation_is_a_table_with_its_reason() -> None:
    evidence = (Evidence("a", "1", (2.0, 2.0)), Evidence("b", "1", (1.0, 1.0)))
    record = Record("s", "p", "host", "b", evidence, 0.0)
    (one,) = explain([record], [], "s", None)
    table = one._repr_html_()
    assert "<b>b</b>" in table
    assert "lowest median" in table


def test_texts_are_escaped() -> None:
    shown = html_table("<t>", ["<h>"], [["<c>"]], strong=[0], notes=["<n>"])
    assert not [one for one in ("<t>", "<h>", "<c>", "<n>") if one in shown]
    assert "<b>&lt;c&gt;</b>" in shown
