"""`bt.tune_dataloader`, on photographs, and in a process with little shared memory."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

import bestof.torch as bt
from bestof.errors import InvalidArgument
from bestof.torch.process.data_loading import epoch, room, trial_times, tuning
from bestof.torch.process.data_loading.interception import _State, data_loading_lines, tunings

sys.path.insert(0, str(Path(__file__).parent))

from event_clock import EventClock
from loaders import Numbers
from photographs import Photographs, write


@pytest.fixture(autouse=True)
def none_left(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = EventClock()  # or a loaded machine would end the search early
    for module in (epoch, tuning):
        monkeypatch.setattr(module, "perf_counter", clock)
    monkeypatch.setattr(epoch, "TRIAL_TIMEOUT", 1000.0)
    monkeypatch.setattr(room, "free_shared_memory", lambda: None)
    monkeypatch.setattr(room, "available_memory", lambda: None)
    monkeypatch.setattr(tuning, "processors_of_a_rank", lambda: 2)
    yield
    for one in list(_State.loaders):
        del _State.loaders[one]
    _State.finished.clear()


def test_photographs_are_tuned_by_the_step_of_the_training(tmp_path: Path) -> None:
    loader = DataLoader(Photographs(write(tmp_path, 480)), 8, shuffle=True)
    weight = torch.ones(4, 3, 3, 3)

    def step(batch: Any) -> None:
        assert batch[0].shape == (8, 3, 64, 64)
        torch.conv2d(batch[0], weight)

    torch.manual_seed(3)
    before = torch.get_rng_state(), numpy.random.get_state()[1].tolist(), random.getstate()
    assert bt.tune_dataloader(loader, step, seconds=6.0) is loader
    after = torch.get_rng_state(), numpy.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    (found,) = tunings()
    report = found.report()
    assert report.chosen is not None
    assert report.chosen.workers == loader.num_workers
    assert {trial.setting.workers for trial in report.trials} > {0}
    assert report.breakdown is not None
    # Which stage takes longest depends on the load of the machine. A stage that was not recognised
    # has no time at all.
    assert min(report.breakdown.shares[stage] for stage in ("decode", "collate")) > 0
    lines = data_loading_lines()
    # Loaders of other tests may have left their lines: they report when they leave memory.
    while not lines[0].startswith("loader Photographs: "):
        del lines[0]
    assert any("decode" in line for line in lines[1:])
    # The state was restored, so the next epoch is the first one of a program without tuning.
    torch.manual_seed(3)
    expected = torch.cat([batch[1] for batch in DataLoader(loader.dataset, 8, shuffle=True)])
    torch.manual_seed(3)
    assert torch.equal(torch.cat([batch[1] for batch in loader]), expected)


def test_a_loader_with_too_few_batches_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(Numbers(2), 4, drop_last=True)
    bt.tune_dataloader(loader, lambda batch: None)
    (found,) = tunings()
    assert "too few batches" in found.reason
    assert loader.num_workers == 0


def test_the_report_of_a_loader_outlives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_times, "LEAST_SECONDS", 0.0)

    def train() -> None:
        for _ in bt.tune_dataloader(DataLoader(Numbers(40), 4)):
            pass

    train()
    assert not tunings()
    assert data_loading_lines()[0].startswith("loader Numbers: ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([1, 2],), "expected a torch.utils.data.DataLoader; got"),
        ((DataLoader(Numbers()), 3), "step: expected a function; got 3"),
    ],
)
def test_other_objects_than_loaders_are_refused(arguments: Any, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        bt.tune_dataloader(*arguments)


@pytest.mark.parametrize(
    "options", [{"tuning_steps": 0}, {"tuning_steps": 1.5}, {"seconds": 0}, {"seconds": "3"}]
)
def test_bounds_that_bound_nothing_are_refused(options: Any) -> None:
    (name,) = options
    with pytest.raises(InvalidArgument, match=f"{name}: expected"):
        bt.tune_dataloader(DataLoader(Numbers()), **options)


SMALL = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import bestof.torch as bt
from bestof.torch.process.data_loading import epoch, room, trial_times, tuning
from bestof.torch.process.data_loading.interception import tunings

epoch.perf_counter = tuning.perf_counter = lambda: 0.0  # no search ends early
trial_times.LEAST_SECONDS, tuning.NO_BOTTLENECK = 0.0, -1.0
tuning.processors_of_a_rank = lambda: 2
if {blind}:
    room.free_shared_memory = lambda: None  # as if it had been taken since it was looked at
loader = bt.tune_dataloader(DataLoader(TensorDataset(torch.arange(64.0 * 65536).view(64, -1)), 4))
rows = torch.cat([batch[0] for batch in loader])
assert torch.equal(rows, loader.dataset.tensors[0])
print(*[trial.reason for trial in tunings()[0].trials if trial.seconds is None], sep="\\n")
print(loader.num_workers)
"""


@pytest.mark.long
@pytest.mark.parametrize("blind", [False, True])
def test_a_process_with_too_little_shared_memory_goes_on(blind: bool) -> None:
    # A batch is 1 MiB, and /dev/shm holds half of that, in a mount namespace of its own.
    mount = "mount -t tmpfs -o size=512k small /dev/shm"
    program = [sys.executable, "-c", SMALL.format(blind=blind)]
    unshare = shutil.which("unshare")
    if (
        unshare is None
        or subprocess.run([unshare, "-rm", "sh", "-c", mount], check=False).returncode
    ):
        pytest.skip("this system lets nobody mount a /dev/shm of his own")
    done = subprocess.run(
        [unshare, "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", *program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = "RuntimeError" if blind else "too little shared memory"
    *reasons, workers = done.stdout.splitlines()
    assert told in reasons[0]
    assert workers == "0"
