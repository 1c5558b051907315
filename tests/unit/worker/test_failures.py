"""A worker that does not answer as it should gives one error, and is ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from bestof.errors import BenchError
from bestof.worker import process
from bestof.worker.process import WorkerProcess

CLOSED = "import os, time\nos.close(1)\ntime.sleep(1000)\n"
CHATTY = "import time\nprint('version 3', flush=True)\ntime.sleep(1000)\n"


@pytest.mark.parametrize(
    ("program", "told"),
    [(CLOSED, "ended with status -9"), (CHATTY, "wrote 'version 3' in place of an answer")],
)
def test_an_answer_that_is_none_is_an_error(
    program: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_ENDING", 0.1)
    (tmp_path / "odd_worker.py").write_text(program)
    with (
        WorkerProcess("odd_worker", "", 1, {"PYTHONPATH": str(tmp_path)}) as worker,
        pytest.raises(BenchError, match=told),
    ):
        worker.receive("time", 240.0)
    assert not worker.is_alive()
