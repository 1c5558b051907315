"""The help of every command: examples that can be pasted, and lines that fit the terminal."""

from __future__ import annotations

import contextlib
import io
import re
from importlib import import_module

import pytest

from bestof.cli import COMMANDS, main
from bestof.cli.bench import BENCHES
from bestof.cli.store import ACTIONS

ALL = [
    "",
    *(command.name for command in COMMANDS),
    *(f"store {action.name}" for action in ACTIONS),
    *(f"bench {bench.name}" for bench in BENCHES),
]


def help_of(words: str) -> str:
    if words.startswith("bench "):
        pytest.importorskip("torch")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main([*words.split(), "--help"])
    assert ended.value.code == 0
    return out.getvalue()


@pytest.mark.parametrize("words", ALL)
def test_help_has_an_example_of_options_that_there_are(words: str) -> None:
    text = help_of(words)
    examples = re.findall(rf"^  (?! {{5}}).*\bbestof {words}.*$", text, re.MULTILINE)
    assert examples, text
    if words in ("", "bench", "store"):
        return
    for example in examples:
        own = example.partition(".py")[0].partition("bestof ")[2]
        for option in re.findall(r"(?<= )--[\w-]+", own):
            assert re.search(rf"{option}\b", text.partition(example)[0]), (example, option)


@pytest.mark.parametrize("words", ALL)
def test_help_fits_a_narrow_terminal(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for line in help_of(words).splitlines():
        pasted = line.startswith("  ") and "bestof" in line
        written = line.startswith(("usage: ", "       bestof "))  # usages that no one wraps
        assert pasted or written or len(line) <= 60, line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("rnu x.py", "did you mean 'run'?"),
        ("run --reprot a x.py", "did you mean --report? `bestof run --help` tells more"),
        ("store pin total", "`bestof store pin --help` tells more"),
    ],
)
def test_wrong_usage_tells_the_next_step(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_every_command_has_a_parser() -> None:
    """`bestof completion` reads it."""
    for command in COMMANDS:
        assert import_module(command.module).make_parser().prog == f"bestof {command.name}"
