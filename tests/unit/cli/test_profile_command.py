"""`bestof profile` runs a program as it is, and tells where its time went."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from bestof.profile import Profile, load_profile
from bestof.profile.steady import steady_of

LOGS = Path(__file__).parents[1] / "profile" / "logs"

PROGRAM = """\
import ctypes, os, sys
{first}
import torch
from torch import nn

print("begins", *sys.argv[1:])
layers = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(512, 4)
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.ones(5, 3, 12, 12)), torch.zeros(5).long()).backward()
    optimizer.step()
    print("step", step)
    {inside}
print("ends")
"""


def program(folder: Path, inside: str = "pass", first: str = "") -> Path:
    path = folder / "program.py"
    path.write_text(PROGRAM.format(inside=inside, first=first))
    return path


def bestof(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bestof", "profile", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, **environment},
        check=False,
    )


OUTPUT = "begins a b\n" + "".join(f"step {step}\n" for step in range(6)) + "ends\n"


def test_a_program_is_profiled_from_end_to_end(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("kept.json", "trace.json", "table.csv", "picture.svg")]
    kept, trace, table, picture = files
    options = ("--keep", kept, "--trace", trace, "--csv", table, "--picture", picture, "--steps", 4)
    done = bestof(*options, program(tmp_path), "a", "b")
    assert done.returncode == 0, done.stderr
    assert done.stdout == OUTPUT
    assert "4 steps; 3 issued the same calls" in done.stderr
    assert "0 to no operation" in done.stderr
    assert "not understood" not in done.stderr
    assert all(path.stat().st_size > 0 for path in files)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert {row["key"] for row in rows if row["by"] == "phase"} >= {
        "forward",
        "backward",
        "optimizer",
    }
    again = bestof("--show", kept, "--by", "module,direction", "--json")
    content = json.loads(again.stdout)
    found = {
        tuple(row["keys"].values()) for row in content["breakdowns"][0]["rows"] if row["flops"]
    }
    assert found >= {("0", "forward_training"), ("0", "backward_weights"), ("2", "backward_data")}
    assert content["samples"] == 5
    # How much of the time is explained depends on the load of the machine.
    assert content["coverage"] == steady_of(load_profile(kept)).coverage > 0
    events = json.loads(trace.read_text())["traceEvents"]
    lines = [event for event in events if event["ph"] == "X" and event["name"] == "convolution"]
    # Four steps of two forward passes, two weight gradients and one input gradient.
    assert len(lines) == 4 * 5


@pytest.mark.long
def test_a_failing_program_keeps_its_recording(tmp_path: Path) -> None:
    done = bestof(program(tmp_path, "if step == 3: raise KeyError('program')"), "a", "b")
    assert done.returncode == 1
    assert "KeyError: 'program'" in done.stderr
    assert "4 steps" in done.stderr
    assert done.stdout.endswith("step 3\n")


@pytest.mark.long
def test_a_program_may_close_its_output_and_set_the_level_of_lines_itself(tmp_path: Path) -> None:
    first = "os.environ['ONEDNN_VERBOSE'] = '0'; os.close(1); sys.stdout = open(os.devnull, 'w')"
    done = bestof(program(tmp_path, first=first))
    assert done.returncode == 0, done.stderr
    assert "convolution" in done.stderr
    assert done.stdout == ""


@pytest.mark.long
def test_a_program_may_close_all_descriptors(tmp_path: Path) -> None:
    # As a program does that becomes a daemon. What it opens next must not get lines of oneDNN.
    log = tmp_path / "log.txt"
    inside = f"if step == 2: os.closerange(3, 4096); log = open({str(log)!r}, 'w')"
    done = bestof(program(tmp_path, inside), "a", "b")
    assert done.returncode == 0, done.stderr
    assert done.stdout == OUTPUT
    assert log.read_text() == ""
    assert "Traceback" not in done.stderr
    assert "6 steps" in done.stderr
    assert "the program closed the file that takes the lines" in done.stderr


@pytest.mark.long
def test_a_program_that_asks_for_lines_gets_them(tmp_path: Path) -> None:
    # Without a buffer, `print` writes a line in pieces, and a line of oneDNN may come in between.
    done = bestof(
        program(tmp_path, first="os.environ['ONEDNN_VERBOSE'] = '1'"), "a", "b", PYTHONUNBUFFERED=""
    )
    own = [line for line in done.stdout.splitlines() if "verbose" not in line.lower()]
    assert own == OUTPUT.splitlines()
    assert sum(",exec,cpu,convolution" in line for line in done.stdout.splitlines()) == 6 * 5
    assert "6 steps" in done.stderr


@pytest.mark.long
def test_a_program_that_prints_a_lot_loses_nothing(tmp_path: Path) -> None:
    """Python, C and a child process print between the lines of oneDNN.

    Both buffers end within lines, so the two may be mixed, as without a capture. Python prints
    digits here and C capital letters. The order of each must stay.
    """
    words = "''.join(map(chr, (65 + i % 26, 65 + i // 26 % 26, 65 + i // 676))).encode()"
    inside = (
        "puts = ctypes.CDLL(None).puts; "
        f"[(print(i), puts({words})) for i in range(5000)]; os.system('echo =')"
    )
    done = bestof(program(tmp_path, inside))
    assert done.returncode == 0, done.stderr
    steps = [f"{step}{''.join(map(str, range(5000)))}" for step in range(6)]
    assert "".join(filter(str.isdigit, done.stdout)) == "".join(steps)
    letters = "".join(
        chr(65 + i % 26) + chr(65 + i // 26 % 26) + chr(65 + i // 676) for i in range(5000)
    )
    assert "".join(filter(str.isupper, done.stdout)) == letters * 6
    assert done.stdout.count("=") == 6
    assert done.stdout.count("\n") == 6 * (5000 + 5000 + 1) + len(OUTPUT.splitlines())
    assert "0 to no operation" in done.stderr
    assert "not understood" not in done.stderr


@pytest.mark.long
def test_refusals_of_onednn_are_shown(tmp_path: Path) -> None:
    done = bestof("--dispatch", "--steps", "2", program(tmp_path), "a", "b")
    assert done.stdout == OUTPUT
    assert "implementations that oneDNN refused:" in done.stderr
    assert "create:dispatch,convolution" in done.stderr
    assert "2 steps" in done.stderr


@pytest.mark.long
def test_a_file_that_cannot_be_written_at_the_end_costs_nothing_else(tmp_path: Path) -> None:
    gone, kept = tmp_path / "gone", tmp_path / "kept.json"
    gone.mkdir()
    path = tmp_path / "removes.py"
    path.write_text(f"import os, torch\ntorch.ones(3).exp()\nos.rmdir({str(gone)!r})\n")
    done = bestof("--csv", gone / "table.csv", "--keep", kept, "--by", "phase", path)
    assert done.returncode == 0
    assert "coverage" in done.stderr
    assert "bestof: cannot write to" in done.stderr
    assert "Traceback" not in done.stderr
    assert kept.exists()


def test_names_that_the_terminal_cannot_show_are_escaped(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    Profile("größe.py", 1.0, ()).save(kept)
    done = bestof("--show", kept, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("profile of gr\\xf6\\xdfe.py\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_tables_that_cannot_be_printed_are_an_error(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    Profile("program", 1.0, ()).save(kept)
    command = [sys.executable, "-m", "bestof", "profile", "--show", str(kept)]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode != 0
    assert "No space left on device" in done.stderr


def test_a_program_without_torch_gets_a_message(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text("print('plain')\n")
    done = bestof(path)
    assert (done.returncode, done.stdout) == (0, "plain\n")
    assert done.stderr == (
        f"bestof: there is no profile: {path} did not import torch, so there is nothing to "
        "profile\n"
    )


def test_the_command_does_not_import_torch_before_the_program() -> None:
    # PyTorch reads OMP_NUM_THREADS and others when it is imported: programs set these first.
    code = "import sys, bestof.cli.profile, bestof.cli.compare; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name one of a script, --log FILE and --show FILE"),
        (["--by", "colour", "x.py"], "there is no field 'colour'"),
        (["--log", "missing.log"], "cannot read the log 'missing.log'"),
        (
            ["--show", "missing.json"],
            "'missing.json': No such file or directory; write one by bestof",
        ),
        (["--keep", "missing/x.json", "x.py"], "cannot write to 'missing/x.json'"),
        (["--steps", "-1", "x.py"], "--steps, --skip: expected 0 or more"),
        (["--picture", "x.xyz", "x.py"], "expected a file that ends in .png, .svg, .pdf"),
        (["-"], "cannot run '-'"),
    ],
)
def test_wrong_usage_is_reported(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from bestof.cli import main  # noqa: PLC0415

    assert main(["profile", *arguments]) in (1, 2)
    assert words in capsys.readouterr().err


def test_a_log_is_broken_down(capsys: pytest.CaptureFixture[str]) -> None:
    from bestof.cli import main  # noqa: PLC0415

    assert main(["profile", "--log", str(LOGS / "onednn-2.6.log")]) == 0
    out = capsys.readouterr().out
    assert "lines: 3 of oneDNN, MKL and bestof" in out
    assert "coverage: unknown" in out
    assert "jit:avx512_core" in out
