"""`bestof completion`: what the shells offer."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bestof.cli import main

LINES = [
    ("bestof ru", ["run"]),
    ("bestof store p", ["pin", "pull", "push"]),
    ("bestof bench m", ["model"]),
    ("bestof bench model --st", ["--static", "--steps"]),
    ("bestof run --accuracy ", ["exact", "float32", "relaxed"]),
    ("bestof completion ", ["bash", "fish", "zsh"]),
]
# Words as bash splits them, with what it offers.
_BASH = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_bestof
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("torch")  # `bestof bench model` has its options from there
    folder = tmp_path_factory.mktemp("completion")
    written = {}
    for shell in ("bash", "zsh", "fish"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert main(["completion", shell]) == 0
        written[shell] = folder / shell
        written[shell].write_text(out.getvalue(), encoding="utf-8")
    return written


def shown(*command: object) -> list[str]:
    done = subprocess.run(
        [str(one) for one in command], check=True, capture_output=True, text=True, timeout=60
    )
    assert not done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("line", "offered"), LINES)
def test_bash_offers(scripts: dict[str, Path], line: str, offered: list[str]) -> None:
    words = shown("bash", "-c", _BASH, "bash", scripts["bash"], *line.split(" "))
    assert sorted(words) == offered


def test_bash_leaves_the_scripts_options_to_the_script(scripts: dict[str, Path]) -> None:
    for words in (["run", "train.py", "--"], ["run", "tr"]):
        offered = shown("bash", "-c", _BASH, "bash", scripts["bash"], "bestof", *words)
        assert offered == [""]


@pytest.mark.parametrize(("line", "offered"), LINES)
def test_fish_offers(scripts: dict[str, Path], line: str, offered: list[str]) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is missing")
    lines = shown("fish", "--no-config", "-c", f"source {scripts['fish']}; complete -C '{line}'")
    assert sorted(one.partition("\t")[0] for one in lines) == offered


def test_zsh_reads_the_script(scripts: dict[str, Path]) -> None:
    """Its words are those of bash: zsh runs the same function."""
    if shutil.which("zsh") is None:
        pytest.skip("zsh is missing")
    assert shown("zsh", "-f", "-c", f"source {scripts['zsh']}; print $_comps[bestof]") == [
        "_bash_complete -o default -F _bestof"
    ]


@pytest.mark.parametrize("missing", [("torch",), ("torch", "numpy", "rich", "matplotlib")])
def test_no_package_is_needed(missing: tuple[str, ...]) -> None:
    """It failed without PyTorch. Benchmarks that need a package have no options then."""
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
        "from bestof.cli import main; sys.exit(main(['completion', 'bash']))"
    )
    lines = "\n".join(shown(sys.executable, "-c", program))
    for words, option in [("scale", "--serve"), ("serve-check", "--engines"), ("run", "--locked")]:
        (found,) = [line for line in lines.splitlines() if f'"{words}") words=' in line]
        assert option in found
    assert '"bench model") words="" options=""' in lines


@pytest.mark.parametrize("module", ["scale", "serve_check"])
def test_commands_import_pytorch_when_they_run(module: str) -> None:
    program = f"import sys, bestof.cli.{module}; print('torch' in sys.modules)"
    assert shown(sys.executable, "-c", program) == ["False"]
