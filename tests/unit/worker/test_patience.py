"""A worker that waits for a processor is given more time; one that sleeps is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bestof.worker.process import OutOfPatience, WorkerProcess

WORKER = """
import time
from bestof.worker.serve import serve

class Worker:
    def compute(self, seconds):
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass
        return "computed"

    def sleep(self, seconds):
        time.sleep(seconds)

serve(Worker)
"""


@pytest.fixture(name="worker")
def _worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    """A worker that shares one processor with three busy processes."""
    if not os.path.exists("/proc/self/schedstat"):
        pytest.skip("the kernel does not tell how long a process waits")
    (tmp_path / "pinned_worker.py").write_text(WORKER)
    environment = {"PYTHONPATH": str(tmp_path)}
    allowed = os.sched_getaffinity(0)
    with ExitStack() as stack:
        os.sched_setaffinity(0, {min(allowed)})  # for the processes that are started here
        try:
            for _ in range(3):
                busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                stack.callback(busy.wait)
                stack.callback(busy.kill)
            worker = stack.enter_context(WorkerProcess("pinned_worker", "", 1, environment))
        finally:
            os.sched_setaffinity(0, allowed)
        worker.ask("sleep", seconds=0.0)
        yield worker


def test_seconds_without_a_processor_do_not_count(worker: WorkerProcess) -> None:
    worker.send("compute", seconds=0.4)
    assert worker.receive("compute", 0.7, crowded=60.0) == "computed"
    assert worker.lost > 0.0
    worker.send("compute", seconds=0.4)
    with pytest.raises(OutOfPatience):
        worker.receive("compute", 0.7)


def test_a_worker_that_hangs_is_given_no_more_time(worker: WorkerProcess) -> None:
    worker.send("sleep", seconds=1000.0)
    with pytest.raises(OutOfPatience):
        worker.receive("sleep", 0.2, crowded=600.0)
