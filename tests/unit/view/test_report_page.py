"""The page: whole without a network or its script; in a browser, every control does its work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_overview import REPORT, timed

from bestof import view
from bestof.selection.reports.report import Moment, Report, Run, SelectorReport
from bestof.view.time_line import time_line


def test_the_page_needs_no_other_file() -> None:
    page = view.render(REPORT, "html")
    assert not re.search(r"(?:src|href)=|https?:|@import|url\(", page)
    assert "<title>bestof: train.py</title>" in page


def test_names_cannot_break_the_page() -> None:
    evil = timed("</script><b>", 0.2, 0.1, 1, '"><img src=x onerror=alert(1)>')
    page = view.render(Report((SelectorReport("<i>", 1, (evil,)),)), "html")
    assert "<img" not in page
    assert page.count("</script>") == 1


def test_a_thousand_problems_stay_small() -> None:
    problems = tuple(timed(f"p{i}", 0.2, 0.1, i, f"block.{i}") for i in range(1000))
    page = view.render(Report((SelectorReport("s", 1, problems),)), "html")
    assert len(page) < 5_000_000


def test_the_time_line_ends_at_all_trials_and_decisions() -> None:
    drawn = time_line((Moment(1.0, 5, 0.1, 0), Moment(2.0, 10, 0.2, 4)))
    assert "10 trials and 4 decisions in 2.00 s; half of the decisions were made after 2.00 s" in (
        drawn
    )
    assert 'class="trials" d="M10 180L460.0 100.0L910.0 20.0"' in drawn
    assert time_line((Moment(0.0, 0, 0.0, 0), Moment(0.0, 0, 0.0, 0)))  # nothing happened


def test_a_run_of_absurd_numbers_is_drawn() -> None:
    course = (Moment(-1e17, -5, 1e17, 3), Moment(0.0, 10**17, -1e17, -4))
    run = Run("\x1b[2J<b>", -1e17, 1e17, "cpu", ("\x00",), course)
    for format in ("text", "html"):
        shown = view.render(Report(REPORT.selectors, run), format)  # type: ignore[arg-type]
        assert "at an unknown date" in shown
        assert shown.replace("\n", "").isprintable()
        assert format == "text" or "2J&lt;b&gt;" in shown


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    selectors = (
        *REPORT.selectors,
        SelectorReport("softmax", 1, (timed("z", 0.1, 0.2, 3, "attention"),)),
    )
    course = (Moment(1.0, 5, 0.1, 0), Moment(2.0, 10, 0.2, 4))
    run = Run("train.py", 40.0, 1.7e9, "cpu", (), course)
    file = tmp_path / "report.html"
    file.write_text(view.render(Report(selectors, run), "html"), encoding="utf-8")
    opened = browser.new_page(viewport={"width": 390, "height": 800})
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto(file.as_uri())
    yield opened
    opened.close()
    assert said == []


def names(page: Any) -> list[str]:
    shown = page.locator("#rows > tbody > tr:visible > th").all_inner_texts()
    return [text.strip() for text in shown]


def test_controls_of_the_page(page: Any) -> None:
    assert names(page) == ["conv1", "head +1", "attention"]
    page.set_viewport_size({"width": 1200, "height": 800})
    gain = page.get_by_role("button", name="gain", exact=True)
    gain.click()
    assert names(page) == ["head +1", "conv1", "attention"]
    assert page.locator("th[aria-sort=descending]").inner_text() == "gain"
    gain.click()
    assert names(page) == ["attention", "conv1", "head +1"]
    page.keyboard.press("/")
    page.keyboard.type("TAIL fast")
    assert names(page) == ["head +1"]
    assert page.locator("#count").inner_text() == "1 row"
    page.get_by_label("filter").fill("")
    for label, value, left in (
        ("operation", "softmax", ["attention"]),
        ("show", "noisy", ["conv1"]),
        ("show", "slower", ["attention"]),
    ):
        page.get_by_label(label).select_option(value)
        assert names(page) == left
        page.get_by_label(label).select_option("")


def test_rows_open_by_the_keyboard_and_all_at_once(page: Any) -> None:
    opened = page.locator("#rows > tbody > tr > td > details[open]")
    page.locator("#rows summary").first.focus()
    page.keyboard.press("Enter")
    assert opened.count() == 1
    assert page.get_by_text("1 not tried").first.is_visible()
    page.get_by_role("button", name="open all").click()
    assert opened.count() == 3
    page.get_by_role("button", name="close all").click()
    assert opened.count() == 0


def test_a_phone_shows_the_page_without_scrolling_sideways(page: Any) -> None:
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390
    assert page.locator("td[data-label=after]").first.is_visible()
