"""The command without a subcommand, and how errors end it."""

from __future__ import annotations

import io
import subprocess
import sys
import types
from collections.abc import Callable

import pytest

from bestof.cli import COMMANDS, main
from bestof.errors import BestofError, InvalidArgument, StoreError


def test_help_lists_every_command_and_imports_little() -> None:
    code = """
import sys
from bestof.cli import main
try: main(['--help'])
finally: print(*sys.modules)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=True
    )
    for command in COMMANDS:
        assert f"{command.name} " in ended.stdout
        assert command.summary in " ".join(ended.stdout.split())  # a narrow terminal wraps it
    assert {"torch", "numpy", "rich"}.isdisjoint(ended.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "word"), [([], "missing"), (["fly"], "'fly'"), (["--fly"], "'--fly'")]
)
def test_wrong_usage_ends_with_2(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"), [(StoreError("it\nbroke"), 1), (InvalidArgument("it\nbroke"), 2)]
)
def test_an_error_of_bestof_is_one_line(
    error: BestofError,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def call(argv: object) -> int:
        raise error

    monkeypatch.setitem(sys.modules, "bestof.cli.report", types.SimpleNamespace(call=call))
    assert main(["report"]) == status
    assert capsys.readouterr() == ("", "bestof: it broke\n")


def test_an_interrupt_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def importing(name: str) -> types.ModuleType:
        assert name == "bestof.cli.scale"
        raise KeyboardInterrupt

    monkeypatch.setattr("bestof.cli.import_module", importing)
    assert main(["scale", "train.py"]) == 130
    assert capsys.readouterr() == ("", "bestof: interrupted\n")


def test_only_output_of_bestof_escapes_what_the_terminal_cannot_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written, seen = io.BytesIO(), []

    def call(argv: object) -> Callable[[], int]:
        print("größe … ±", flush=True)
        return lambda: seen.append(sys.stdout.errors) or 0

    monkeypatch.setitem(sys.modules, "bestof.cli.run", types.SimpleNamespace(call=call))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["run", "train.py"]) == 0
    assert written.getvalue() == b"gr\\xf6\\xdfe \\u2026 \\xb1\n"
    assert seen == ["strict"]


def test_a_program_s_interrupt_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> int:
        raise KeyboardInterrupt

    subcommand = types.SimpleNamespace(call=lambda argv: program)
    monkeypatch.setitem(sys.modules, "bestof.cli.run", subcommand)
    with pytest.raises(KeyboardInterrupt):
        main(["run", "train.py"])


def test_a_program_s_errors_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> int:
        raise StoreError("its own")

    def call(argv: object) -> Callable[[], int]:
        return program

    monkeypatch.setitem(sys.modules, "bestof.cli.run", types.SimpleNamespace(call=call))
    with pytest.raises(StoreError, match="its own"):
        main(["run"])


def test_an_error_shows_escape_sequences_as_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(arguments: list[str]) -> int:
        raise StoreError("no decision of '\x1b[2Jname'")

    monkeypatch.setitem(sys.modules, "bestof.cli.report", types.SimpleNamespace(call=call))
    assert main(["report"]) == 1
    assert capsys.readouterr().err == "bestof: no decision of '\\x1b[2Jname'\n"
