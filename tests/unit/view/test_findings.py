"""Findings as lines that fit: the dearest trap first, control characters escaped."""

from __future__ import annotations

from typing import Any

import pytest

from bestof.view.findings import finding_lines


def finding(trap: str, caught: bool | None, factor: float | None, cure: str = "") -> dict[str, Any]:
    seen = f"what was seen of {trap}, in a sentence of \x1b[31m many words: " + "word " * 30
    of = "products" if trap == "cheap" else "steps"
    return {"trap": trap, "caught": caught, "factor": factor, "seen": seen, "cure": cure, "of": of}


FOUND = [
    finding("not met", False, None),
    finding("cheap", True, 1.1, "one line"),
    finding("unmeasured", True, None, "another line"),
    finding("dear", True, 4.0, "a third line"),
    finding("unknown", None, None),
]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_fit_and_the_dearest_is_first(width: int) -> None:
    lines = list(finding_lines(FOUND, width))
    assert max(map(len, lines)) <= width
    assert all(line.isprintable() for line in lines)
    assert lines[0] == "3 traps found, of 5 that were looked for"[:width]
    heads = [line for line in lines if line.startswith("!")]
    assert heads == [
        "! dear: steps are 4.00 times as slow",
        "! cheap: products are 1.10 times as slow",
        "! unmeasured: its cost a step is unknown",
    ]
    cures = [line for line in lines if line.startswith("  cure: ")]
    assert cures == ["  cure: a third line", "  cure: one line", "  cure: another line"]
    assert [line[:2] for line in lines if line[0:1] in "-?" and line] == ["- ", "? "]
