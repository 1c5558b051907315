"""The process of an engine: `python -m bestof.torch.engines.worker JOB` (the job as JSON)."""

from __future__ import annotations

import copy
import json
import sys
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from bestof.selection.store import default_store
from bestof.torch.engines.build import Call, build
from bestof.torch.engines.engine import Engine
from bestof.torch.engines.error import error_of
from bestof.torch.engines.travel import receive
from bestof.worker.end_with import end_with
from bestof.worker.serve import serve


class EngineWorker:
    """The engine of this process. Each public method is an order; see `bestof.worker.serve`.

    place: of the inputs, among those that were sent.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        torch.set_num_threads(job["threads"])
        self._job = job
        self._engine = Engine(job["engine"], job["module"], options=job["options"])
        self._models = receive(Path(job["folder"]))
        self._calls: dict[int, Call] = {}

    def start(self, place: int) -> None:
        """Do nothing: the worker is there, and has read the model."""

    def expect(self, place: int, file: str) -> dict[str, Any]:
        """Write the model's outputs in float64 to a file. Return the errors of PyTorch itself.

        reason: why the outputs of no engine can be compared, or None.
        """
        flat, tensors = self._models[place]
        given = [one.clone() for one in tensors]
        state = [(one, one._version) for one in (*flat.parameters(), *flat.buffers())]
        with torch.no_grad():
            outputs = [one.clone() for one in flat(*given)]
            reason = None
            if not all(map(_same, given, tensors)):
                reason = "the model changes its inputs"
            elif any(one._version != version for one, version in state):
                reason = "the model changes its buffers"
            expected = self._exact(place)
            torch.save(expected, file)
            eager = error_of(outputs, expected)
            if not isfinite(eager) or eager > 0.5:
                reason = reason or (
                    f"the model in float32 differs from the model in float64 by {eager:.1e}"
                )
            rounded = self._rounded(place, expected)
        return {"eager": eager, "rounded": rounded, "reason": reason}

    def build(self, place: int) -> float:
        """Build the engine for some inputs, and call it once; return the seconds that this took."""
        started = perf_counter()
        flat, tensors = self._models[place]
        threads, accuracy = self._job["threads"], self._job["accuracy"]
        self._calls[place] = build(self._engine, flat, tensors, threads, accuracy)
        self._calls[place](tensors)
        store = default_store()  # the plan's choices, which the caller's process will read
        if store is not None:
            store.flush()
        return perf_counter() - started

    def error(self, place: int, file: str) -> float:
        """Return the error of the outputs, given those in float64."""
        return error_of(self._calls[place](self._models[place][1]), torch.load(file))

    def time(self, place: int, seconds: float) -> float:
        """Call for some seconds, twice at least; return the least seconds of a call.

        Other programs on the machine disturb medians, and those of the plan most. One call before
        these is not timed: another process has used the caches.
        """
        call, tensors = self._calls[place], self._models[place][1]
        call(tensors)
        taken: list[float] = []
        while sum(taken) < seconds or len(taken) < 2:
            started = perf_counter()
            call(tensors)
            taken.append(perf_counter() - started)
        return min(taken)

    def _exact(self, place: int) -> list[Tensor]:
        """Return the outputs in float64; in the model's own type if it does not run in float64."""
        flat, tensors = self._models[place]
        try:
            return list(copy.deepcopy(flat).double()(*map(_double, tensors)))
        except Exception:  # it makes tensors of float32 itself
            return list(flat(*tensors))

    def _rounded(self, place: int, expected: list[Tensor]) -> float | None:
        flat, tensors = self._models[place]
        if self._job["accuracy"] != "relaxed":
            return None
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return error_of(list(flat(*tensors)), expected)
        except Exception:  # autocast does not run every model
            return None


def _double(one: Tensor) -> Tensor:
    return one.double() if one.is_floating_point() else one.clone()


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def main() -> None:
    """Answer orders until the parent closes the standard input or ends."""
    job = json.loads(sys.argv[1])
    if not end_with(job["parent"]):
        sys.exit(1)
    sys.path[:] = job["path"]
    serve(lambda: EngineWorker(job))


if __name__ == "__main__":
    main()
