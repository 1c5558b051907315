"""The processes that serve a plan together, and what they take."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from time import monotonic
from typing import Any

from bestof.errors import BenchError
from bestof.recipe.contestant import OutOfTime, ScriptFailed
from bestof.scale.split import Split
from bestof.worker.process import WorkerProcess

_LEAD = 0.1
"""All instances begin so many seconds after the order, and are called until then."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What all instances did in the same seconds.

    times: of each call, in seconds, of all instances. rate: calls a second of all together.
    """

    times: list[float]
    rate: float


class Instances:
    """Starts one process for each instance of a split, pinned to its processors.

    `memory` and `base` are the most bytes of an instance and those before it has loaded the plan;
    `seconds` is its fastest call in the warm-up. ScriptFailed if an instance fails, OutOfTime if it
    is not ready at `deadline`, in seconds of `monotonic`.
    """

    def __init__(self, file: str, split: Split, deadline: float) -> None:
        assert split.batch is not None
        self.processes: list[WorkerProcess] = []
        try:
            for processors in split.ranks:
                told = {"file": file, "batch": split.batch, "processors": processors}
                self.processes.append(
                    WorkerProcess(
                        "bestof.scale.instance",
                        json.dumps({**told, "parent": os.getpid()}),
                        split.threads,
                    )
                )
            ready = self._ask("warm", deadline)
        except BaseException:  # an interrupt too must not leave processes behind
            self.close()
            raise
        self.seconds: float = max(one["seconds"] for one in ready)
        self.memory: int = max(one["memory"] for one in ready)
        self.base: int = max(one["base"] for one in ready)

    def turn(self, seconds: float, deadline: float) -> Turn:
        """Let all instances call the plan for some seconds at the same time."""
        start = monotonic() + _LEAD
        found = self._ask("run", deadline, start=start, stop=start + seconds)
        return Turn(
            times=[time for one in found for time in one["times"]],
            rate=sum(len(one["times"]) / one["elapsed"] for one in found),
        )

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.close()
        self.processes = []

    def _ask(self, order: str, deadline: float, **arguments: float) -> list[dict[str, Any]]:
        try:
            for process in self.processes:
                process.send(order, **arguments)
            found = []
            for process in self.processes:
                found.append(process.receive(order, max(0.0, deadline - monotonic())))
        except BenchError as error:
            if monotonic() >= deadline:
                raise OutOfTime("the time is up") from error
            raise ScriptFailed(str(error)) from error
        return found
