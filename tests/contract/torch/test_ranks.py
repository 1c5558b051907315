"""Real ranks over Gloo: what they decide, also if one of them is slow, late or gone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

pytestmark = [
    pytest.mark.skipif(
        not dist.is_available() or not dist.is_gloo_available(), reason="this PyTorch has no Gloo"
    ),
    pytest.mark.timeout(1100),
]

PROGRAM = Path(__file__).with_name("rank_program.py")
MOST_SECONDS = 1000.0

JOBS = int(os.environ.get("BESTOF_TEST_JOBS", "3"))
"""Two or four ranks make so many jobs one after the other. 50 take minutes."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def ranks(count: int, part: str, folder: Path, **environment: str) -> list[Any]:
    """Run a part of the program on so many ranks, each in an interpreter of its own.

    Return what each wrote, None for a rank that died. The store of the job is in this process,
    unless STORE_HOST names the rank that has it.
    """
    server = None
    if "STORE_HOST" in environment:
        port = free_port()
    else:
        server = dist.TCPStore(
            "127.0.0.1", 0, None, True, timedelta(seconds=1000), wait_for_workers=False
        )
        port = server.port
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), part, *map(str, (rank, count, port)), str(folder)],
            env={**os.environ, **environment},
        )
        for rank in range(count)
    ]
    end = time.monotonic() + MOST_SECONDS * max(1, JOBS / 5)
    stuck = []
    for rank, process in enumerate(processes):
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            stuck.append(rank)
            process.kill()
            process.wait()
    del server
    assert not stuck, f"ranks {stuck} did not end"
    files = [folder / f"{rank}.json" for rank in range(count)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files]


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
def test_fifty_problems_with_noise_are_decided_alike(count: int, tmp_path: Path) -> None:
    found = ranks(count, "noisy", tmp_path)
    assert found[0] is not None
    assert len(found[0]) == 50
    assert all(decisions == found[0] for decisions in found)
    assert set(found[0]) <= {"best", "good", "as is"}


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
def test_jobs_with_noise_decide_alike(count: int, tmp_path: Path) -> None:
    found = ranks(count, "jobs", tmp_path, JOBS=str(JOBS))
    assert found[0] is not None
    assert len(found[0]) == JOBS
    assert all(decisions == found[0] for decisions in found)
    assert {name for job in found[0] for name in job} <= {"best", "good", "as is"}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("count", [2, 4])
def test_drift_on_one_rank_reopens_the_problem_on_all(count: int, tmp_path: Path) -> None:
    assert ranks(count, "drifts", tmp_path) == [["best", "good"]] * count


@pytest.mark.long
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_dies_holds_up_nobody(who: int, tmp_path: Path) -> None:
    # Rank 0 takes the store along: then each of the others decides for itself.
    found = ranks(3, "dies", tmp_path, DIES=str(who), STORE_HOST="0")
    assert found[who] is None
    left = [decision for rank, decision in enumerate(found) if rank != who]
    assert all(decision is not None for decision in left)
    assert who == 0 or left[0] == left[1]


@pytest.mark.long
def test_unequal_batches_a_late_and_a_slow_rank(tmp_path: Path) -> None:
    first, second = ranks(2, "uneven", tmp_path)
    assert first[0] == second[0] is not None
    assert first[1] is not None
    assert second[1] is None


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
def test_ddp_trains_to_the_same_loss_with_the_same_decisions(count: int, tmp_path: Path) -> None:
    for (untuned, tuned), gathered in ranks(count, "trains", tmp_path):
        assert abs(untuned - tuned) <= 1e-3
        for key in {key for decisions in gathered for key in decisions}:
            assert len({one[key] for one in gathered if key in one}) == 1, (key, gathered)
        assert min(map(len, gathered)) >= 6


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "models"), [(1, "resnet34,transformer"), (2, "vgg16"), (4, "mlp")]
)
def test_the_examples_train_to_the_same_loss(count: int, models: str, tmp_path: Path) -> None:
    for found, trials in ranks(count, "examples", tmp_path, MODELS=models):
        assert list(found) == models.split(",")
        for model, (untuned, tuned) in found.items():
            assert len(untuned) == len(tuned) == 100
            learns = sum(untuned[-50:]) < sum(untuned[:50])
            assert learns or model == "resnet34"  # 100 steps of its small rate do not show it
            assert abs(untuned[-1] - tuned[-1]) <= 1e-3, model
        assert trials > 0 or models == "mlp"  # its products are too small to be tuned
