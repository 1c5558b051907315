"""The page of a profile: whole without a network; in a browser, every control does its work."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bestof.cli import main
from bestof.cli.profile_page import profile_page
from bestof.cli.profile_picture import draw_profile
from bestof.profile import Profile, Span, Step
from bestof.profile.peak import Peak


def span(module: str, seconds: float, phase: str = "forward", flops: int = 0) -> Span:
    return Span(
        kind="line",
        source="onednn",
        name="convolution",
        start=0.0,
        seconds=seconds,
        self_seconds=seconds,
        thread=1,
        step=0,
        phase=phase,
        module=module,
        direction="forward_training",
        operation="aten::mkldnn_convolution",
        implementation="jit:avx512_core",
        problem="mb1_ic3oc8_ih8oh8kh3",
        dtype="f32",
        flops=flops,
    )


SPANS = (
    span("fast.conv", 0.1, flops=90),
    span("slow.conv", 0.3, flops=90),
    span("conv<1>", 0.2, "backward"),
)
PROFILE = Profile(
    "train.py",
    1.0,
    SPANS,
    (Step(0.0, 1.0, 4),),
    thread=1,
    lines=3,
    notes=("a busy machine",),
    peak=Peak(1e3, 1e3),
)


def test_the_page_needs_no_other_file_and_names_modules() -> None:
    page = profile_page(PROFILE)
    assert not re.search(r"(?:src|href)=|https?:|@import|url\(", page)
    assert "conv&lt;1&gt;" in page
    assert "conv<1>" not in page
    for text in ("1.00 s", "250 ms", "60.0%", "a busy machine", "jit:avx512_core", "90%", "30%"):
        assert text in page, text


def test_the_command_writes_the_page_of_a_kept_profile(tmp_path: Path) -> None:
    kept, page = tmp_path / "kept.json", tmp_path / "page.html"
    PROFILE.save(kept)
    assert main(["profile", "--show", str(kept), "--report", str(page)]) == 0
    assert page.read_text(encoding="utf-8") == profile_page(PROFILE)


def test_a_profile_without_peaks_and_steps_has_a_page() -> None:
    spans = tuple(replace(one, step=-1) for one in SPANS)
    page = profile_page(replace(PROFILE, spans=spans, peak=None, steps=(), notes=()))
    assert "the machine's peak" not in page
    assert "<span>all calls</span>" in page
    assert "a step" not in page
    assert "0 steps" not in page
    assert 'data-label="roofline" data-value="0">' in page


def test_the_picture_tells_the_time_of_a_short_step(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "profile.svg"
    quick = replace(PROFILE, spans=(span("conv", 4e-4),), steps=(Step(0.0, 4e-4, 4),))
    draw_profile(quick, str(path))
    assert "<!-- train.py: 400 us a step" in path.read_text(encoding="utf-8")
    whole = replace(quick, spans=(replace(quick.spans[0], step=-1),), steps=())
    draw_profile(whole, str(path))
    drawn = path.read_text(encoding="utf-8")
    assert "<!-- train.py: 1.00 s" in drawn
    assert "a step" not in drawn


def test_controls_of_the_page(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "profile.html"
    file.write_text(profile_page(PROFILE), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1000, "height": 900})
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(file.as_uri())

    def names() -> list[str]:
        shown = page.locator("#rows > tbody > tr:visible > th").all_inner_texts()
        return [text.strip() for text in shown]

    assert names() == ["slow.conv", "conv<1>", "fast.conv"]
    page.get_by_role("button", name="roofline", exact=True).click()
    assert names()[0] == "fast.conv"
    page.locator("#state").select_option("far")
    assert names() == ["slow.conv"]
    page.locator("#state").select_option("")
    page.locator("#operation").select_option("backward")
    assert names() == ["conv<1>"]
    page.get_by_role("button", name="open all").click()
    problem = page.locator("tr:visible details[open] td:nth-child(2):visible")
    assert problem.all_inner_texts() == ["convolution mb1_ic3oc8_ih8oh8kh3"]
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()
    assert said == []
