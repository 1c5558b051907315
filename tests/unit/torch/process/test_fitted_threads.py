"""PyTorch's threads are lowered to what the process may use, and never raised."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import bestof.torch as integration
from bestof.errors import BestofWarning
from bestof.processors import Room
from bestof.torch.process import threads as module
from bestof.torch.process.threads import FittedThreads, Lowered

LIMIT = "the quota of its control group is 1 processors"


@pytest.fixture(autouse=True)
def _threads_of_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    integration.disable()
    torch.set_num_threads(before)


@pytest.fixture
def started() -> int:
    torch.set_num_threads(3)
    return 3


def roomy(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(module, "room_for_threads", lambda: Room(count, LIMIT))


def test_an_excess_is_lowered_told_once_and_undone(
    monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    roomy(monkeypatch, 1)
    fitted = FittedThreads()
    with pytest.warns(BestofWarning, match=f"on 1 in place of {started} threads: {LIMIT}"):
        fitted.fit()
    assert torch.get_num_threads() == 1
    assert fitted.lowered == Lowered(started, 1, LIMIT)
    fitted.undo()
    assert torch.get_num_threads() == started
    assert fitted.lowered is None
    fitted.fit()  # it would raise if it warned again
    assert torch.get_num_threads() == 1


def test_threads_are_never_raised(monkeypatch: pytest.MonkeyPatch, started: int) -> None:
    roomy(monkeypatch, 64)
    FittedThreads().fit()
    assert torch.get_num_threads() == started
    torch.set_num_threads(1)
    FittedThreads().fit()
    assert torch.get_num_threads() == 1


def test_a_number_that_was_set_after_fit_stays(
    monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    roomy(monkeypatch, 1)
    fitted = FittedThreads()
    with pytest.warns(BestofWarning):
        fitted.fit()
    torch.set_num_threads(started + 2)
    fitted.undo()
    assert torch.get_num_threads() == started + 2


@pytest.mark.parametrize(
    "variable", ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"]
)
def test_only_the_first_rank_tells(
    variable: str, monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    roomy(monkeypatch, 1)
    monkeypatch.setenv(variable, "1")
    FittedThreads().fit()  # it would raise if it warned
    assert torch.get_num_threads() == 1


def test_enable_fits_and_disable_undoes(monkeypatch: pytest.MonkeyPatch, started: int) -> None:
    roomy(monkeypatch, 1)
    monkeypatch.setattr(integration.enable.__globals__["_State"], "threads", FittedThreads())
    with pytest.warns(BestofWarning, match="in place of"):
        integration.enable()
    assert torch.get_num_threads() == 1
    assert integration.summary().threads == Lowered(started, 1, LIMIT)
    with integration.enabled({"threads": {"fit": False}}):
        assert torch.get_num_threads() == 1  # a block leaves the threads unchanged
    integration.enable({"threads": {"fit": False}})
    assert torch.get_num_threads() == started
    integration.enable()
    assert torch.get_num_threads() == 1
    integration.disable()
    assert torch.get_num_threads() == started
    assert integration.summary().threads is None
    with integration.enabled():
        assert torch.get_num_threads() == started


def test_a_block_leaves_a_number_that_was_set_after_enable(
    monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    roomy(monkeypatch, 1)
    monkeypatch.setattr(integration.enable.__globals__["_State"], "threads", FittedThreads())
    with pytest.warns(BestofWarning, match="in place of"):
        integration.enable()
    torch.set_num_threads(started)
    with integration.enabled():
        assert torch.get_num_threads() == started
    assert torch.get_num_threads() == started
    integration.enable()
    assert torch.get_num_threads() == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity")
def test_an_affinity_that_was_narrowed_after_the_import_is_seen() -> None:
    """PyTorch itself reads the affinity once, when it is imported."""
    script = f"""
import os, torch
torch.set_num_threads(4)
os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})
import bestof.torch
bestof.torch.enable()
print(torch.get_num_threads())
"""
    environment = os.environ | {"BESTOF_STORE": "off"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "1\n"
    if os.cpu_count() != 1:
        told = "PyTorch computes on 1 in place of 4 threads: the process may run on 1 of"
        assert told in done.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_workers_of_multiprocessing_do_not_tell(method: str, tmp_path: Path) -> None:
    """A spawned worker imports the main module, and so PyTorch, before it knows its parent."""
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, torch\n"
        "import bestof.torch\n"
        "def work(): print(torch.get_num_threads())\n"
        "bestof.torch.enable()\n"
        "if __name__ == '__main__':\n"
        f"    worker = multiprocessing.get_context({method!r}).Process(target=work)\n"
        "    worker.start()\n"
        "    worker.join()\n"
    )
    one = min(os.sched_getaffinity(0))
    done = subprocess.run(
        ["taskset", "-c", str(one), sys.executable, str(program)],
        env=os.environ | {"OMP_NUM_THREADS": "2", "BESTOF_STORE": "off"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1"]
    assert done.stderr.count("in place of 2 threads") == 1, done.stderr
