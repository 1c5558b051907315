"""One side as the measuring process sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any

from bestof.bench.convolution.case import Case
from bestof.bench.convolution.worker import Prepared
from bestof.errors import BenchError


class Side:
    """A process that runs the convolutions of one side with a fixed number of threads; ends with the `with` block.

    Raises BenchError, here and in every method, where the process ends instead of answering; it holds the last line
    that the process wrote.
    """

    def __init__(self, name: str, threads: int) -> None:
        self.name, self.threads = name, threads
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
        }
        self._told = TemporaryFile("w+")  # noqa: SIM115  a pipe that nobody reads would block its writer
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bestof.bench.convolution.worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._told,
            text=True,
            env=environment,
        )
        try:
            self.version = str(self._ask(do="version"))
        except BenchError:
            self.close()
            raise

    def prepare(self, case: Case) -> dict[str, Prepared]:
        """The runs that this side has for a case, each called twice; empty where it cannot run it."""
        answer = self._ask(do="prepare", case=asdict(case))
        return {name: Prepared(**fields) for name, fields in answer.items()}

    def time(self, run: str, seconds: float) -> list[float]:
        """Seconds of each call of a prepared run, for about that long."""
        return [float(one) for one in self._ask(do="time", run=run, seconds=seconds)]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._told.close()

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(self, **request: object) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            print(json.dumps(request), file=stdin, flush=True)
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.communicate()
            self._told.seek(0)
            last = self._told.read().strip().splitlines()[-1:] or [
                f"exit status {self._process.returncode}"
            ]
            raise BenchError(f"{self.name}: {last[0]}")
        return json.loads(line)
