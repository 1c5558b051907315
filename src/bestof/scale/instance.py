"""The process of one instance, which `Instances` starts: it calls a plan, and times each call."""

from __future__ import annotations

import json
import os
import sys
from time import monotonic
from typing import Any

from bestof.scale.process_memory import process_memory
from bestof.worker.end_with import end_with
from bestof.worker.serve import serve

WARM_SECONDS = 0.5
LEAST_WARM_CALLS = 5
MOST_WARM_SECONDS = 60.0
"""A plan that came from another machine chooses its algorithms in the first calls. This bounds
them."""


class Instance:
    """Calls the plan `file` with `batch` samples, on the processors that it may use."""

    def __init__(self, file: str, batch: int) -> None:
        # Later than the affinity: the threads of PyTorch inherit it.
        from bestof.scale.plan_inputs import is_settled, load_for  # noqa: PLC0415 - see above

        self._base = process_memory("VmRSS")
        self._plan, self._args, self._kwargs = load_for(file, batch)
        self._is_settled = is_settled

    def warm(self) -> dict[str, Any]:
        """Call the plan until it is warm. Return the seconds of a call, and the memory in bytes."""
        begun = monotonic()
        calls = [self._call()]
        while (spent := monotonic() - begun) < MOST_WARM_SECONDS and (
            spent < WARM_SECONDS
            or len(calls) < LEAST_WARM_CALLS
            or not self._is_settled(self._plan, self._args, self._kwargs)
        ):
            calls.append(self._call())
        most = process_memory("VmHWM")
        return {"seconds": min(calls), "memory": most, "base": self._base}

    def run(self, start: float, stop: float) -> dict[str, Any]:
        """Call the plan from `start` to `stop`, in seconds of `monotonic`; return the times.

        It is called before `start` and after `stop`, too, so that the processors are as busy for
        the first and the last call that count. `elapsed` is the time of all calls that count.
        """
        self._call()
        while monotonic() < start:
            self._call()
        begun, times = monotonic(), [self._call()]
        while (now := monotonic()) < stop:
            times.append(self._call())
            now = monotonic()
        elapsed = now - begun
        while monotonic() < stop + max(times):
            self._call()
        return {"times": times, "elapsed": elapsed}

    def _call(self) -> float:
        begun = monotonic()
        self._plan(*self._args, **self._kwargs)
        return monotonic() - begun


def main() -> None:
    """Answer orders until the parent closes the standard input or ends."""
    options = json.loads(sys.argv[1])
    if not end_with(options["parent"]):
        sys.exit(1)
    os.sched_setaffinity(0, options["processors"])
    serve(lambda: Instance(options["file"], options["batch"]))


if __name__ == "__main__":
    main()
