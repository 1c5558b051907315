"""A bar on the terminal, for what takes long."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from bestof.progress import late_progress_bar, progress_bar


class Terminal(io.StringIO):
    """A standard error that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("bar", [progress_bar, lambda: late_progress_bar(0.0)])
def test_a_terminal_shows_the_text(bar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with bar() as tell:
        tell("half of it", 1, 2)
    assert "half of it" in sys.stderr.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("bar", [progress_bar, lambda: late_progress_bar(0.0)])
def test_a_file_shows_nothing(bar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with bar() as tell:
        tell("half of it", 1, 2)
    assert not sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_what_ends_soon_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    with late_progress_bar(60.0) as tell:
        tell("half of it", 1, 2)
    assert not sys.stderr.getvalue()  # type: ignore[attr-defined]
