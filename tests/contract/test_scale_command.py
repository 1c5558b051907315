"""`bestof scale` and `bestof pinned` on real ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bestof.cli import main
from bestof.cli.scale_launcher import LAUNCHER

PAGE = (Path(__file__).parents[2] / "docs" / "whole_process.md").read_text(encoding="utf-8")
SCRIPT = PAGE.partition("Save this as `ranks.py`:\n```python\n")[2].partition("```")[0]
# Short turns, and no comparison of close splits: the test is about the processes.
SHORT = """
import sys
from bestof.cli import main
from bestof.recipe import contestant
from bestof.scale import measure
contestant.TURN_SECONDS, measure.CLOSE = 0.02, 0.0
sys.exit(main(sys.argv[1:]))
"""
BEGIN = (sys.executable, "-c", SHORT)
# A process imports PyTorch in 4 s, and in ten times that beside other tests.
COMMAND = ("scale", "--seconds", "1800", "--batch", "32", "ranks.py", "--batch", "{batch}")


def bestof(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BEGIN, *arguments],
        cwd=folder,
        env={**os.environ, "BESTOF_STORE": "off"},
        capture_output=True,
        text=True,
        timeout=2000,
        check=False,
    )


def processes_in(folder: Path) -> list[int]:
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            if (one / "cwd").resolve(strict=True) == folder.resolve():
                found.append(int(one.name))
        except OSError:  # it has ended meanwhile, or belongs to another user
            continue
    return found


@pytest.mark.long
@pytest.mark.timeout(2100)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) != 2, reason="other machines have more splits")
def test_the_page_prints_a_command_that_runs(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(SCRIPT)
    done = bestof(tmp_path, "scale", "--json", *COMMAND[1:])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(one["ranks"], one["threads"], one["batch"]) for one in told["splits"]] == [
        (1, 1, 32),
        (1, 2, 32),
        (2, 1, 16),
    ]
    assert [one["why"] for one in told["splits"]] == ["", "", ""]
    for one in told["splits"]:
        assert one["seconds"] > 0
        assert one["strong"] > 0
        assert one["weak"] > 0
        assert 2**20 < one["memory"] < 2**34
    again = subprocess.run(
        f"{told['command']} --steps 3",
        shell=True,
        cwd=tmp_path,
        timeout=200,
        check=False,
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stderr
    assert processes_in(tmp_path) == []


@pytest.mark.long
@pytest.mark.timeout(700)
def test_an_interrupt_ends_all_ranks(tmp_path: Path) -> None:
    begun = "open(f'began{distributed.get_rank()}', 'w').close()\nlayers ="
    (tmp_path / "ranks.py").write_text(SCRIPT.replace("layers =", begun))
    running = subprocess.Popen(
        [*BEGIN, *COMMAND], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 200
    while not (tmp_path / "began0").exists():
        assert time.monotonic() < until
        assert running.poll() is None
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=200)
    assert running.returncode == 130, err
    assert "ranks  threads" in out
    until = time.monotonic() + 200
    while processes_in(tmp_path):  # a killed process takes a moment to leave
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.long
@pytest.mark.timeout(700)
@pytest.mark.skipif(sys.platform != "linux", reason="bestof scale runs on Linux only")
def test_ranks_that_hang_end_with_a_killed_command(tmp_path: Path) -> None:
    hang = "import time\nopen('began', 'w').close()\ntime.sleep(1000)\n"
    (tmp_path / "ranks.py").write_text(hang)
    running = subprocess.Popen(
        [*BEGIN, *COMMAND], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 200
    while not (tmp_path / "began").exists():
        assert time.monotonic() < until
        assert running.poll() is None
        time.sleep(0.1)
    running.kill()
    running.wait(timeout=200)
    until = time.monotonic() + 200
    while processes_in(tmp_path):
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="bestof scale runs on Linux only")
def test_a_rank_whose_launcher_has_ended_does_not_begin(tmp_path: Path) -> None:
    """Its parent is another process then."""
    (tmp_path / "ranks.py").write_text("open('began', 'w').close()\n")
    done = subprocess.run(
        [sys.executable, "-m", "bestof.cli.scale_trial", "0", "0", "1", "ranks.py"],
        cwd=tmp_path,
        env={**os.environ, LAUNCHER: str(os.getppid()), "RANK": "1"},
        timeout=200,
        check=False,
    )
    assert done.returncode == 1
    assert not (tmp_path / "began").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("scale",), "nothing to run"),
        (("scale", "ranks.py"), "pass the global batch and its place"),
        (("scale", "--batch", "8", "ranks.py"), "pass the global batch and its place"),
        (("scale", "--divides", "ranks.py", "{batch}"), "--divides leaves the batch to the script"),
        (("scale", "--batch", "0", "ranks.py", "{batch}"), "--batch: expected at least 1; got 0"),
        (("pinned", "0"), "nothing to run"),
        (("pinned", "x", "ranks.py"), "expected processors such as 0-3,8; got 'x'"),
        (("pinned", "999999", "ranks.py"), "the processors [999999] of rank 0 are not allowed"),
    ],
)
def test_a_wrong_command_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    told: str,
) -> None:

    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranks.py").write_text("")
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_more_ranks_than_lists_of_processors_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCAL_RANK", "1")
    (tmp_path / "ranks.py").write_text("")
    assert main(["pinned", "0", "ranks.py"]) == 2
    assert "has processors for 1 ranks, but LOCAL_RANK is 1" in capsys.readouterr().err


@pytest.mark.parametrize("wrapper", ["bestof.cli.pinned", "bestof.cli.scale_trial"])
def test_what_pins_a_rank_loads_no_threads_before(wrapper: str) -> None:
    """OpenMP reads its number of threads when it is loaded, which torch and the kernels do."""
    loaded = "[name for name in ('torch', 'numpy', 'bestof.kernels') if name in sys.modules]"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {wrapper}; print({loaded})"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_a_rank_has_as_many_threads_as_processors(tmp_path: Path) -> None:
    script = tmp_path / "threads.py"
    script.write_text("import torch\nprint(torch.get_num_threads())\n")
    first = str(min(os.sched_getaffinity(0)))
    done = subprocess.run(
        [sys.executable, "-m", "bestof", "pinned", first, str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1\n"
