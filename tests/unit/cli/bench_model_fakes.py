"""Measurements for the tests of `bestof bench model`, in place of those that take minutes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from bestof.bench.model import matrix as model_matrix
from bestof.bench.model.job import Job
from bestof.bench.model.measure import Effort
from bestof.bench.model.peers.table import ModelPeer
from bestof.bench.model.result import LayerTimes, ModelTimes, PeerTime
from bestof.cli import bench_model
from bestof.errors import BenchError

EAGER = PeerTime(
    "eager",
    "PyTorch eager, channels first",
    False,
    0.008,
    1e-4,
    0.5,
    0.4,
    0.6,
    0.0,
    None,
    0.1,
    (0.02, 0.01),
)
NCNN = PeerTime("ncnn", "ncnn", False, reason="not installed: ncnn")
ENABLE = PeerTime(
    "enable",
    "bestof enable",
    True,
    0.002,
    1e-4,
    2.0,
    1.9,
    2.1,
    1e-6,
    False,
    0.1,
    (0.03, 0.002),
    784_000_000,
    least=0.0019,
)
LAYERS = (
    LayerTimes("i3x8x8,k4x3x3,b1,s2,p1,d1,g1", "forward", "as is", {"as is": 1e-3, "im2row": 2e-3}),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Job, list[str], Effort, bool]]:
    """What was asked for; the answers are the rows above."""
    calls: list[tuple[Job, list[str], Effort, bool]] = []

    def measure(
        job: Job, peers: Sequence[ModelPeer], effort: Effort, *, layers: bool, progress: Any
    ) -> ModelTimes:
        calls.append((job, [peer.name for peer in peers], effort, layers))
        progress("ncnn: prepares", 1, 3)
        found = LAYERS if layers else ()
        return ModelTimes(job, "eager", (EAGER, NCNN, ENABLE), found, "a processor, 2 cpus")

    monkeypatch.setattr(bench_model, "measure_model", measure)
    monkeypatch.setattr(bench_model.os, "sched_getaffinity", lambda pid: {0, 1})
    return calls


@pytest.fixture
def matrix_asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the matrix prepared, model and peer; resnet34 fails the first time."""
    calls: list[tuple[str, str]] = []

    class Process:
        def __init__(self, job: Job) -> None:
            self.job = job

        def __enter__(self) -> Process:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def ask(self, order: str, **_: object) -> dict[str, Any]:
            if order == "prepare":
                calls.append((self.job.model, self.job.peer))
                if self.job.model == "resnet34" and calls.count(calls[-1]) == 1:
                    raise BenchError("died")
            return {
                "settled": True,
                "trials": 3,
                "own": [0.5],
                "replaced": [1.0],
                "difference": 0.0,
            }

    monkeypatch.setattr(model_matrix, "start_peer", Process)
    return calls
