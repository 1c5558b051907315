"""Busy processes beside a measurement."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

# It ends with the process that has started it, also if that is killed.
_SPIN = """
import os, sys
parent = int(sys.argv[1])
sys.stdout.write(".")
sys.stdout.flush()
while os.getppid() == parent:
    pass
"""


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` processes busy meanwhile, each on one processor."""
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            one = subprocess.Popen(
                [sys.executable, "-c", _SPIN, str(os.getpid())], stdout=subprocess.PIPE
            )
            stack.callback(_end, one)
            started.append(one)
        for one in started:
            assert one.stdout is not None
            one.stdout.read(1)  # it is up
        yield


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
