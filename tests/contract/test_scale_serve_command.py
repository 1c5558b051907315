"""`bestof scale --serve` on real plans and processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.cli import main, scale_serve
from bestof.recipe.contestant import descendants
from bestof.scale.cores import Cores
from bestof.scale.instances import Turn
from bestof.scale.plan_inputs import batches_of, is_settled, load_for
from bestof.scale.split import Split, splits

# Short turns, one thread, and no comparison of close settings: the test is about the processes.
SHORT = """
import sys
from bestof.cli import main
from bestof.cli import scale_serve
from bestof.scale import serving
serving.SECONDS, serving.CLOSE = 0.05, 0.0
all_splits = scale_serve.splits
scale_serve.splits = lambda *given: [one for one in all_splits(*given) if one.threads == 1]
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan of two batches."""
    file = tmp_path / "small.plan"
    made = bt.optimize(nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval(), torch.randn(1, 8))
    made.prepare([(3, 8)])
    made.save(file)
    return file


def bestof(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SHORT, *arguments],
        env={**os.environ, "BESTOF_STORE": "off"},
        capture_output=True,
        text=True,
        timeout=2000,
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(2100)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) != 2, reason="other machines have more settings")
def test_the_table_has_all_settings_and_the_best_keeps_the_bound(tmp_path: Path) -> None:
    file = tmp_path / "small.plan"
    bt.optimize(nn.Linear(8, 4).eval(), torch.randn(3, 8)).save(file)
    # A call takes 10 us. Only a process that waits for its turn takes longer. An instance imports
    # PyTorch in 4 s, and in ten times that beside other tests.
    done = bestof(
        *("scale", "--serve", str(file), "--latency", "100s", "--seconds", "1800", "--json")
    )
    assert done.returncode == 0, done.stderr
    assert "other batches are not tried: call plan.prepare for them" in done.stderr
    told = json.loads(done.stdout)
    found = told["settings"]
    assert [(one["batch"], one["instances"], one["processors"]) for one in found] == [
        (3, 1, "0"),
        (3, 2, "0/1"),
    ]
    for one in found:
        assert one["why"] == ""
        assert one["within"] is True
        assert one["calls"] >= 100
        assert 0 < one["p50"] <= one["p99"]
        assert 2**20 < one["memory"] < 2**34
    assert told["best"] in found
    assert told["best"]["throughput"] == max(one["throughput"] for one in found)
    assert len(told["commands"]) == told["best"]["instances"]


# Each instance says that it runs, and then hangs in its first call.
HANG = """
import sys
from bestof.cli import main
from bestof.scale import instances
started = instances.WorkerProcess
def hanging(module, options, threads):
    return started("hanging_instance", options, threads)
instances.WorkerProcess = hanging
sys.exit(main(sys.argv[1:]))
"""
INSTANCE = """
import os, time
from pathlib import Path
from bestof.scale import instance
def hang(self, file, batch):
    Path(f"began.{os.getpid()}").touch()
    time.sleep(1000)
instance.Instance.__init__ = hang
instance.main()
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="bestof scale runs on Linux only")
def test_instances_end_with_a_killed_command(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "hanging_instance.py").write_text(INSTANCE)
    running = subprocess.Popen(
        [sys.executable, "-c", HANG, "scale", "--serve", str(plan)],
        cwd=tmp_path,
        env={**os.environ, "BESTOF_STORE": "off", "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 200
    while not (began := list(tmp_path.glob("began.*"))):
        assert time.monotonic() < until
        assert running.poll() is None
        time.sleep(0.05)
    instance = int(began[0].suffix[1:])
    assert instance in descendants(running.pid)
    running.kill()
    running.wait(timeout=200)
    while runs(instance):
        assert time.monotonic() < until
        time.sleep(0.05)


def runs(process: int) -> bool:
    """Return whether a process runs. One that has ended may still have its number."""
    try:
        return bool(os.readlink(f"/proc/{process}/cwd"))
    except OSError:
        return False


class Slow:
    """Stands for `Instances`: calls of 9 ms, and of 8 ms with several threads."""

    memory = base = 2**20

    def __init__(self, file: str, split: Split, deadline: float) -> None:
        self.seconds = 0.009 if split.threads == 1 else 0.008

    def turn(self, seconds: float, deadline: float) -> Turn:
        return Turn([self.seconds] * 200, 1 / self.seconds)

    def close(self) -> None:
        pass


def test_a_bound_that_nothing_keeps_names_the_nearest(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scale_serve, "Instances", Slow)
    two = splits(Cores(((0, 1),), 2), None)
    monkeypatch.setattr(scale_serve, "splits", lambda cores, batch: two)
    assert main(["scale", "--serve", str(plan), "--latency", "5ms"]) == 1
    said = capsys.readouterr()
    assert "beyond" in said.out
    assert "start your server" not in said.out
    assert said.err.splitlines()[-1] == (
        "bestof: no setting keeps 99 % of the calls within 5 ms; the nearest is 1 instance of 2 "
        "threads, batch 1: 8 ms; pass a larger --latency, or a plan of smaller batches"
    )
    assert main(["scale", "--serve", str(plan), "--latency", "8.5ms"]) == 0
    assert "best: 1 instance of 2 threads, batch 3\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("--serve", "absent.plan"), 1, "load: there is no file absent.plan"),
        (("--serve", "other.plan"), 1, "bestof: load: other.plan is no plan; expected a file"),
        (("--serve", "other.plan", "train.py"), 2, "--serve takes a plan and no script"),
        (
            ("--serve", "other.plan", "--batch", "4"),
            2,
            "--batch, --divides and --environment go with",
        ),
        (("--serve", "other.plan", "--environment"), 2, "--batch, --divides and --environment go"),
        (("--latency", "5ms", "train.py"), 2, "--latency bounds the calls of a plan"),
    ],
)
def test_a_wrong_use_of_serve_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    status: int,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.plan").write_text("no plan")
    assert main(["scale", *arguments]) == status
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("text", ["50", "0ms", "-1ms", "ms", "5 minutes", "nan s"])
def test_a_latency_without_number_or_unit_is_refused(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["scale", "--serve", "a.plan", f"--latency={text}"])
    assert caught.value.code == 2
    assert "expected a time such as 50ms or 0.2s" in capsys.readouterr().err


def test_the_batches_of_a_plan_are_those_that_it_was_prepared_for(plan: Path) -> None:
    assert batches_of(str(plan)) == ([1, 3], "float32 (8)")
    loaded, args, kwargs = load_for(str(plan), 3)
    assert [tuple(one.shape) for one in args] == [(3, 8)]
    assert kwargs == {}
    for _ in range(10_000):  # the second batch chooses its algorithms in its calls
        loaded(*args)
        if is_settled(loaded, args, kwargs):
            break
    assert is_settled(loaded, args, kwargs)


def test_other_kinds_of_inputs_are_built_as_they_were_planned(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def forward(self, values: Tensor, numbers: Tensor, factor: float = 1.0) -> Tensor:
            return values * factor + numbers[:, None]

    def inputs(batch: int) -> tuple[Tensor, Tensor]:
        return torch.randn(5, batch).t(), torch.ones(batch, dtype=torch.int64)

    made = bt.optimize(Scaled().eval(), inputs(2), {"factor": 2.0})
    made.prepare([inputs(6), ((4, 7), (4,))])
    file = tmp_path / "scaled.plan"
    made.save(file)
    assert batches_of(str(file)) == ([2, 6], "float32 (5), int64 ()")
    loaded, args, kwargs = load_for(str(file), 6)
    assert kwargs == {"factor": 2.0}
    assert args[0].stride() == (1, 6)
    assert torch.equal(loaded(*args, **kwargs), args[0] * 2.0 + args[1][:, None])
