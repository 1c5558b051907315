"""BESTOF=on tunes every process that imports PyTorch, and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

CONVOLVE = """
import torch
x, w = torch.randn(1, 8, 12, 12), torch.randn(8, 8, 3, 3)
for _ in range(4):
    torch.conv2d(x, w)
import sys
tuned = sys.modules.get("bestof.torch")
print(None if tuned is None else tuned.summary().layers)
"""


def run(program: str, wanted: str | None, *arguments: str) -> tuple[str, str]:
    """Return what a program prints on both outputs."""
    environment = {name: text for name, text in os.environ.items() if name != "BESTOF"}
    environment["BESTOF_STORE"] = "off"
    if wanted is not None:
        environment["BESTOF"] = wanted
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
        timeout=240,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize(
    ("wanted", "layers"), [(None, "None"), ("", "None"), ("off", "None"), ("on", "1"), ("1", "1")]
)
def test_the_variable_decides(wanted: str | None, layers: str) -> None:
    assert run(CONVOLVE, wanted) == (layers, "")


def test_a_configuration_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "bestof.json"
    file.write_text('{"kernel": {"enable": false}, "layout": {"enable": true}}')
    assert run(CONVOLVE, str(file)) == ("0", "")


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "InvalidArgument"), ("{", "InvalidArgument"), ('{"kernels": {}}', "unknown key")],
)
def test_what_is_wrong_is_told_and_the_program_runs(
    text: str | None, told: str, tmp_path: Path
) -> None:
    file = tmp_path / "bestof.json"
    if text is not None:
        file.write_text(text)
    printed, said = run(CONVOLVE, str(file))
    assert printed == "0"
    assert said.startswith(f"bestof: PyTorch is not tuned, although BESTOF={file}: ")
    assert told in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("errors", ["None", "open(os.devnull, 'w'); sys.stderr.close()"])
def test_without_an_output_for_errors_the_program_runs(errors: str, tmp_path: Path) -> None:
    """PyTorch's import fails if an entry point raises."""
    program = f"import os, sys; sys.stderr = {errors}\n{CONVOLVE}"
    assert run(program, str(tmp_path / "missing.json")) == ("0", "")


def test_loaders_and_layouts_stay_as_they_are() -> None:
    """Workers that nobody asked for would be forked from a process with threads."""
    program = """
import torch
loader = torch.utils.data.DataLoader(torch.arange(8), 4)
print(sum(int(batch.sum()) for batch in loader))
from bestof.torch.process.data_loading.interception import data_loading_lines
from bestof.torch.process.layout.interception import _State
print(data_loading_lines(), _State.handles)
"""
    assert run(program, "on") == ("28\n[] []", "")


def test_bestof_may_be_imported_first() -> None:
    assert run("import bestof.torch" + CONVOLVE, "on") == ("1", "")


def test_a_spawned_process_is_tuned() -> None:
    """Its own code calls nothing of bestof."""
    program = """
import subprocess, sys
print(subprocess.run([sys.executable, "-c", sys.argv[1]], capture_output=True, text=True).stdout)
"""
    assert run(program, "on", CONVOLVE)[0] == "1"


def test_without_the_variable_nothing_of_bestof_is_imported() -> None:
    program = """
import sys
from importlib.metadata import entry_points
(one,) = entry_points(group="torch.backends", name="bestof")
one.load()()
print([name for name in sys.modules if name.partition(".")[0] == "bestof"])
"""
    assert run(program, None) == ("[]", "")


def test_pytorch_finds_the_entry_point() -> None:
    (found,) = entry_points(group="torch.backends", name="bestof")
    assert found.value == "bestof_autoload:tune"


TREE = """
import sys
from bestof import BestOf
import torch

one = BestOf("one", [("a", abs), ("b", lambda x: abs(x))], lambda x: x)
for _ in range(40):
    one(3)
if len(sys.argv) > 1:
    import subprocess

    subprocess.run([sys.executable, sys.argv[1]], check=True)
    subprocess.run([sys.executable, sys.argv[1]], check=True)
"""


@pytest.mark.parametrize("wanted", [True, False])
def test_one_summary_counts_the_processes_of_a_tree(wanted: bool, tmp_path: Path) -> None:
    file = tmp_path / "part.py"
    file.write_text(TREE)
    environment = {"TMPDIR": str(tmp_path)}
    if wanted:
        environment["BESTOF_SUMMARY"] = "on"
    with pytest.MonkeyPatch.context() as patch:
        for name, text in environment.items():
            patch.setenv(name, text)
        _, told = run(TREE, "on", str(file))
    if not wanted:
        assert told == ""
        return
    lines = told.splitlines()
    assert lines[0].startswith("bestof: -c, 3 processes ran ")
    assert sum("one 3" in line for line in lines) == 1
    assert sum(line.startswith("bestof: ") for line in lines) == 1
    # In each process, the first trial settles nothing: so many calls are settled together.
    (row,) = [line for line in lines if "one 3" in line]
    assert int(row.split()[2]) in range(3 * 20, 3 * 40)
    assert list(tmp_path.glob("bestof-summary-*")) == []
