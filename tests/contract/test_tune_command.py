"""`bestof tune` on real scripts, whose steps show what a setting costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

# Its step is twice as slow unless the optimizer is fused, and much slower with one thread. It moves
# the clock of bestof by hand, so that the load of the machine decides nothing.
SCRIPT = """
import sys
import torch
from bestof.recipe import step_clock

now = 0.0
step_clock.perf_counter = lambda: now
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.Adam(model.parameters())
print("words of the script")
for number in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.ones(3, 8)).sum().backward()
    now += 0.06 if torch.get_num_threads() == 1 else 0.02
    now += 0.0 if optimizer.param_groups[0]["fused"] else 0.02
    optimizer.step()
print("fused", optimizer.param_groups[0]["fused"], "threads", torch.get_num_threads())
"""

# Each contestant imports PyTorch, in 4 s, and in ten times that beside other tests.
MOST_SECONDS = 2000.0

# Only the parts that the script shows, so that the test is short.
ONLY = """
import sys
from bestof.cli import main
from bestof.recipe import parts
parts.PARTS = tuple(one for one in parts.PARTS if one.name in ("threads", "optimizer"))
sys.exit(main(sys.argv[1:]))
"""


def bestof(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ONLY, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS,
        check=False,
    )


def environment() -> dict[str, str]:
    return {**os.environ, "BESTOF_STORE": "off", "OMP_NUM_THREADS": "2"}


def recipe_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "recipe.json").read_text())
    return content


@pytest.mark.long
@pytest.mark.timeout(2100)
def test_the_gaining_setting_is_kept_and_the_slow_one_never(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = bestof(tmp_path, "tune", "--seconds", "1800", "train.py", "100000")
    assert done.returncode == 0, done.stderr
    assert "words of the script" not in done.stdout
    recipe = recipe_of(tmp_path)
    assert recipe["settings"] == {"fused_optimizer": True}
    compared = {json.dumps(one["candidate"]): one for one in recipe["comparisons"]}
    assert compared['{"threads": 1}']["kept"] is False
    assert compared['{"fused_optimizer": true}']["kept"] is True
    assert done.stdout.count("optimizer (fused_optimizer=true): kept; speed-up ") == 1
    assert "optimizer" not in done.stderr, "each line is told once"
    applied = bestof(tmp_path, "run", "--recipe", "recipe.json", "train.py", "3")
    assert "the recipe recipe.json sets fused_optimizer=true" in applied.stderr
    assert applied.stdout == "words of the script\nfused True threads 2\n"
    again = bestof(tmp_path, "tune", "train.py", "7")
    assert again.returncode == 2
    assert "is the recipe of train.py 100000 with --accuracy float32; pass" in again.stderr


@pytest.mark.timeout(2100)
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("print('no torch')\n", "it has too few steps: at least 5 steps of an optimizer"),
        pytest.param(
            "import torch\n",
            "it has too few steps: at least 5 steps of an optimizer",
            marks=pytest.mark.long,
        ),
        pytest.param(
            SCRIPT.replace("int(sys.argv[1])", "3"), "it has too few steps", marks=pytest.mark.long
        ),
        (SCRIPT + "1 / 0\n", "it failed with status 1: "),
        pytest.param(
            SCRIPT.replace("import sys", "import os\nimport sys\nos.closerange(3, 99)"),
            "it failed with status 1: words of the script | it has closed the descriptors by which",
            marks=pytest.mark.long,
        ),
        pytest.param(
            SCRIPT.replace(
                "import sys",
                "import os\nimport sys\nos.closerange(3, 99)\n"
                "own = [open(f'{n}.txt', 'w+') for n in range(60)]",
            ),
            "it failed with status 1: words of the script | it has closed the descriptors by which",
            marks=pytest.mark.long,
        ),
    ],
    ids=["no torch", "no steps", "few steps", "fails", "closes", "reopens"],
)
def test_a_script_that_cannot_be_tuned_is_told(tmp_path: Path, script: str, told: str) -> None:
    (tmp_path / "train.py").write_text(script)
    done = bestof(tmp_path, "tune", "--seconds", "1800", "train.py", "3")
    assert done.returncode == 1
    assert done.stderr.startswith(f"bestof: train.py 3: {told}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "recipe.json").exists()
    assert not any(one.stat().st_size for one in tmp_path.glob("*.txt"))


def test_a_search_that_measures_nothing_leaves_the_recipe_of_before(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('no torch')\n")
    recipe = tmp_path / "recipe.json"
    recipe.write_text("what took hours\n")
    failed = bestof(tmp_path, "tune", "--fresh", "train.py")
    assert (failed.returncode, recipe.read_text()) == (1, "what took hours\n")
    short = bestof(tmp_path, "tune", "--fresh", "--seconds", "0", "train.py")
    told = "nothing was measured, so recipe.json is not written; pass a larger --seconds"
    assert told in short.stdout
    assert (short.returncode, recipe.read_text()) == (0, "what took hours\n")


@pytest.mark.long
@pytest.mark.timeout(2100)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_an_interrupt_keeps_what_was_measured(tmp_path: Path, sent: signal.Signals) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    running = subprocess.Popen(
        [sys.executable, "-c", ONLY, "tune", "--seconds", "1800", "train.py", "100000000"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    file, until = tmp_path / "recipe.json", time.monotonic() + MOST_SECONDS / 2
    while not (file.exists() and file.read_text() and recipe_of(tmp_path)["comparisons"]):
        assert time.monotonic() < until
        time.sleep(0.1)
    running.send_signal(sent)
    out, err = running.communicate(timeout=MOST_SECONDS / 2)
    assert running.returncode == 130, err
    assert "what was measured is in recipe.json; the same command continues" in out
    recipe = recipe_of(tmp_path)
    assert not recipe["complete"]
    assert recipe["comparisons"][0]["ratios"]


@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems keep children of a killed parent"
)
def test_a_hung_step_ends_with_a_killed_command(tmp_path: Path) -> None:
    script = "import os, time\nopen('began', 'w').write(str(os.getpid()))\ntime.sleep(1000)\n"
    (tmp_path / "train.py").write_text(script)
    running = subprocess.Popen(
        [sys.executable, "-c", ONLY, "tune", "train.py"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    file, until = tmp_path / "began", time.monotonic() + 200
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < until
        assert running.poll() is None
        time.sleep(0.1)
    running.kill()
    running.wait(timeout=200)
    until = time.monotonic() + 200
    while is_running(int(file.read_text())):
        assert time.monotonic() < until
        time.sleep(0.1)


def is_running(process: int) -> bool:
    try:
        # A process that has ended, and that nobody has waited for, is in the state Z.
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except FileNotFoundError:
        return False


def test_a_recipe_and_a_configuration_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = bestof(tmp_path, "run", "--recipe", "r.json", "--accuracy", "exact", "train.py")
    assert done.returncode == 2
    assert "--recipe sets what --config and --accuracy set; pass one of them" in done.stderr
    absent = bestof(tmp_path, "run", "--recipe", "r.json", "train.py")
    assert absent.returncode == 2
    assert "the recipe 'r.json' cannot be read" in absent.stderr
