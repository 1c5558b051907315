"""The process of a peer that is slow, dies, or talks."""

from __future__ import annotations

import pytest

from bestof.bench.model.job import Job
from bestof.bench.process import PeerProcess
from bestof.errors import TorchError

JOB = Job("resnet18", narrow=True)


def test_a_peer_that_takes_too_long_is_ended() -> None:
    with PeerProcess(JOB) as process:
        with pytest.raises(TorchError, match="prepare took longer than 0 s"):
            process.ask("prepare", patience=0)
        with pytest.raises(TorchError, match="its process ended with status -9"):
            process.ask("prepare", patience=60)


def test_a_peer_that_dies_tells_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bestof.bench.process.json.dumps", lambda content: "no json")
    with (
        PeerProcess(JOB) as process,
        pytest.raises(TorchError, match=r"ended with status 1: .*JSONDecodeError"),
    ):
        process.ask("prepare", patience=60)


def test_an_order_that_fails_leaves_the_process_alive() -> None:
    with PeerProcess(JOB.by("eager")) as process:
        for _ in range(2):
            with pytest.raises(TorchError, match="AssertionError: prepare comes first"):
                process.ask("settle", patience=120, limit=1, least=0)
        assert process.ask("prepare", patience=120)["seconds"] >= 0


def test_a_process_tells_its_memory_without_what_it_no_longer_needs() -> None:
    with PeerProcess(JOB.by("optimize")) as process:
        prepared = process.ask("prepare", patience=240)["peak"]
        alone = process.ask("memory", patience=120, calls=2)["peak"]
        assert 50e6 < alone <= prepared
