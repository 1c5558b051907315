"""The process of a peer that is slow, dies, or talks."""

from __future__ import annotations

import pytest

from bestof.bench.model.job import Job
from bestof.bench.model.process import start_peer
from bestof.errors import BenchError

JOB = Job("resnet18", narrow=True)


def test_a_peer_that_takes_too_long_is_ended() -> None:
    with start_peer(JOB) as process:
        with pytest.raises(BenchError, match="prepare took longer than 0 s"):
            process.ask("prepare", patience=0)
        with pytest.raises(BenchError, match="its process ended with status -9"):
            process.ask("prepare", patience=250)


def test_a_peer_that_dies_tells_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bestof.worker.process.json.dumps", lambda content: "no json")
    with (
        start_peer(JOB) as process,
        pytest.raises(BenchError, match=r"ended with status 1: .*JSONDecodeError"),
    ):
        process.ask("prepare", patience=250)


@pytest.mark.long
def test_an_order_that_fails_leaves_the_process_alive() -> None:
    with start_peer(JOB.by("eager")) as process:
        for _ in range(2):
            with pytest.raises(BenchError, match="AssertionError: prepare comes first"):
                process.ask("settle", patience=250, limit=1, least=0)
        assert process.ask("prepare", patience=250)["seconds"] >= 0


@pytest.mark.long
def test_a_process_reports_its_memory_without_unneeded_parts() -> None:
    with start_peer(JOB.by("optimize")) as process:
        prepared = process.ask("prepare", patience=250)["peak"]
        alone = process.ask("memory", patience=250, calls=2)["peak"]
        assert 50e6 < alone <= prepared
