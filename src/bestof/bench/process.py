"""The process of a peer, as the one that measures sees it."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from tempfile import TemporaryFile
from time import monotonic
from typing import IO, Any

from bestof.bench.model.job import Job
from bestof.errors import TorchError


class PeerProcess:
    """A running peer. Leaving the `with` block ends it, by force where it does not end by itself.

    Raises TorchError where the peer failed, died, or took longer than it may: with what it said last.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._errors: IO[bytes] = TemporaryFile()  # noqa: SIM115  closed by __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bestof.bench.model.worker", json.dumps(job.to_dict())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **_environment(job.threads)},
        )

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it died before it read its last order
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def ask(self, order: str, *, patience: float, **arguments: Any) -> dict[str, Any]:
        """Its answer, for which it has `patience` seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"order": order, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise TorchError(self._ended()) from None
        line = self._line(patience)
        if line is None:
            self._process.kill()
            raise TorchError(f"{order} took longer than {patience:.0f} s")
        if not line:
            raise TorchError(self._ended())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise TorchError(answer["error"])
        return answer

    def _line(self, limit: float) -> bytes | None:
        """Up to the end of the line, or of the stream; None once the time is over."""
        stream = self._process.stdout
        assert stream is not None
        read = b""
        end = monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while not read.endswith(b"\n"):
                if not selector.select(max(0.0, end - monotonic())):
                    return None
                part = os.read(stream.fileno(), 1 << 16)
                if not part:
                    return b""
                read += part
        return read

    def _ended(self) -> str:
        status = self._process.wait(5)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with status {status}" + (
            f": {said[-1].strip()[:300]}" if said else ""
        )


def _environment(threads: int) -> Mapping[str, str]:
    """Decisions of other runs stay out; as many threads as the job says, whoever makes them; nothing is fetched."""
    count = str(threads)
    return {
        "BESTOF_STORE": "off",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "TOKENIZERS_PARALLELISM": "false",
    }
