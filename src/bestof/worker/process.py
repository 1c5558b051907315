"""Runs a peer in its own process."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic
from types import MappingProxyType
from typing import IO, Any

from bestof.errors import BenchError

_ENDING = 5.0
"""Seconds that a process may take to end by itself."""


class OutOfPatience(BenchError):
    """A worker did not answer in time. Its process was ended."""


class WorkerProcess:
    """A running peer: a process of its own with a fixed number of threads.

    Peers carry pools of threads, allocators and hooks; in one process they would measure each
    other. `worker` is a module that calls `bestof.worker.serve.serve`; it is started with
    `argument` as its only argument, and with more variables from `environment`. The process ends
    with the `with` block, by force if it does not end by itself.

    `lost` has the seconds for which the main thread waited for a processor since the last order, as
    far as `receive` has seen.

    `ask` raises BenchError if the peer fails, dies or takes too long. The message holds the error,
    or the last line that the process wrote.
    """

    def __init__(
        self,
        worker: str,
        argument: str,
        threads: int,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.lost = 0.0
        self._before = 0.0  # what `_waited` returned when the last order was sent
        # A file, not a pipe: the writer of a full pipe would block.
        self._errors: IO[bytes] = TemporaryFile()  # noqa: SIM115  closed by __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-m", worker, argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **_environment(threads), **environment},
        )

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process: ask it to by the end of its input, and kill it if it goes on."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it died before it read the last order
            self._process.stdin.close()
        try:
            self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def ask(self, order: str, *, patience: float | None = None, **arguments: Any) -> Any:
        """Call the worker's method `order`; return its answer. `patience`: seconds, None for no
        limit.
        """
        self.send(order, **arguments)
        return self.receive(order, patience)

    def send(self, order: str, **arguments: Any) -> None:
        """Call the worker's method `order`. Its answer waits for `receive`."""
        assert self._process.stdin is not None
        self.lost, self._before = 0.0, self._waited()
        try:
            self._process.stdin.write(json.dumps({"order": order, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BenchError(self._ended()) from None

    def receive(self, order: str, patience: float | None = None, *, crowded: float = 0.0) -> Any:
        """Return the answer to `order`, the oldest one that was sent.

        patience: see `ask`. crowded: the seconds that may be added to it, at most, for those in
        which the process waits for a processor.
        """
        line = self._line(patience, crowded)
        if line is None:
            self._process.kill()
            self._process.wait()
            raise OutOfPatience(f"{order} took longer than {patience:.0f} s")
        if not line:
            raise BenchError(self._ended())
        try:
            answer = json.loads(line)
            error = answer.get("error")
        except (ValueError, AttributeError):
            told = line.decode(errors="replace").strip()[:300]
            raise BenchError(f"its process wrote {told!r} in place of an answer") from None
        if error is not None:
            raise BenchError(error)
        return answer["answer"]

    def is_alive(self) -> bool:
        """Return whether the process still runs."""
        return self._process.poll() is None

    def _waited(self) -> float:
        """Return the seconds for which the main thread has waited for a processor so far.

        They are 0 where the kernel does not tell.
        """
        try:
            text = Path(f"/proc/{self._process.pid}/schedstat").read_text()
            return int(text.split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def _line(self, patience: float | None, crowded: float) -> bytes | None:
        """Read to the end of the line, or of the stream; None once the time is over."""
        stream = self._process.stdout
        assert stream is not None
        read, began = b"", monotonic()

        def left() -> float | None:
            self.lost = max(self.lost, self._waited() - self._before)
            if patience is None:
                return None
            return max(0.0, patience + min(crowded, self.lost) - (monotonic() - began))

        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while not read.endswith(b"\n"):
                if not selector.select(left()):
                    if left() == 0.0:
                        return None
                    continue  # the process has waited for a processor meanwhile
                part = os.read(stream.fileno(), 1 << 16)
                if not part:
                    return b""
                read += part
        return read

    def _ended(self) -> str:
        try:
            status = self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:  # it has closed its output, and goes on
            self._process.kill()
            status = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        last = f": {said[-1].strip()[:300]}" if said else ""
        return f"its process ended with status {status}{last}"


def _environment(threads: int) -> Mapping[str, str]:
    """Set as many threads as were asked for in every library; read no stored decision; tune and
    fetch nothing.
    """
    count = str(threads)
    return {
        "BESTOF": "off",
        "BESTOF_STORE": "off",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "TOKENIZERS_PARALLELISM": "false",
    }
