"""A bar on the terminal, for what takes long."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from bestof.cli import main
from bestof.progress import late_progress_bar, progress_bar, under_way


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


def test_results_in_a_pipe_do_not_go_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with under_way("measures"):
        print("a result")
    assert capsys.readouterr().out == "a result\n"
    assert "measures" in terminal.getvalue()
    assert "a result" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("arguments", "told", "result"),
    [
        (["operation", "silu", "--rounds", "1", "--seconds", "0.001"], "operations", "silu"),
        (["dispatch", "--repeats", "2", "--calls", "8"], "calls", "direct call"),
        (
            ["gemm", "8x8x8,NT", "--threads", "1", "--rounds", "1", "--seconds", "0.001"],
            "products",
            "8x8x8",
        ),
    ],
)
def test_a_slow_command_shows_that_it_goes_on(
    arguments: list[str],
    told: str,
    result: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main(["bench", *arguments]) == 0
    assert f"measures {told}" in terminal.getvalue()
    assert result in capsys.readouterr().out
