"""The process of a model peer: `python -m bestof.bench.model.peer_worker JOB` (the job as JSON)."""

from __future__ import annotations

import copy
import json
import sys
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bestof.bench.machine import multiply_adds
from bestof.bench.model.device import waited_for
from bestof.bench.model.error import relative_error
from bestof.bench.model.job import Job
from bestof.bench.model.layers import convolution_notations
from bestof.bench.model.memory import peak_bytes, restart_peak, trim
from bestof.bench.model.models import find_model
from bestof.bench.model.peers.prepared import Prepared, Run
from bestof.bench.model.peers.table import find_peers
from bestof.bench.model.step import training_step
from bestof.selection import report_all
from bestof.worker.serve import serve

# After this many calls in a row without a trial, a peer that makes choices counts as settled.
_QUIET_CALLS = 3
_WARM_CALLS = 2

_PEAK_ROUNDS = 40  # of 5 ms; the best counts


class PeerWorker:
    """The peer of this process. Each public method is an order; see `bestof.worker.serve`."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads)
        self.job = job
        row, self._dtype = find_model(job.model), getattr(torch, job.dtype)
        self._model: nn.Module = row.build(job.size, narrow=job.narrow).to(job.device, self._dtype)
        images = row.inputs(job.batch, job.size, narrow=job.narrow).to(job.device)
        # Tokens keep their type.
        self._images = images.to(self._dtype) if images.is_floating_point() else images
        self._prepared: Prepared | None = None

    def prepare(self) -> dict[str, Any]:
        """Prepare the model. Return the seconds that this took, and the peak of memory.

        Compilers may do their work in the first call instead.
        """
        trim()
        counted = restart_peak()
        (peer,) = find_peers((self.job.peer,))
        module = peer.load()
        started = perf_counter()
        if self.job.train:
            step = training_step(self._model, self._images)
            prepared = module.prepare_training(self._model, step, self.job.threads, **peer.options)
        else:
            prepared = module.prepare(
                self._model.eval(), self._images, self.job.threads, **peer.options
            )
        self._prepared = waited_for(prepared, self.job.device)
        return {"seconds": perf_counter() - started, "peak": peak_bytes() if counted else None}

    def first(self, file: str, calls: int) -> dict[str, Any]:
        """Write the result of the first call, or the losses of the first steps, to a .npy file.

        Return the seconds of each call.
        """
        results, seconds = [], []
        for _ in range(calls if self.job.train else 1):
            result, taken = self._timed()
            results.append(result)
            seconds.append(taken)
        np.save(file, np.array(results) if self.job.train else _array(results[0]))
        return {"seconds": seconds}

    def rounded(self, file: str) -> dict[str, Any]:
        """Write the model's result under PyTorch's autocast to bfloat16 to a .npy file."""
        with torch.autocast(self.job.device, dtype=torch.bfloat16):
            np.save(file, _array(self._timed()[0].float()))
        return {}

    def exact(self, file: str) -> dict[str, Any]:
        """Write the result of the same weights and images in float32 to a .npy file."""
        images = self._images.float() if self._images.is_floating_point() else self._images
        model = copy.deepcopy(self._model).float().eval()
        with torch.no_grad():
            np.save(file, _array(model(images)))
        return {}

    def bound(self) -> dict[str, Any]:
        """Return the peak of the threads in float32, and the seconds of the model's work at it."""
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            self._model(self._images)
        ceiling = multiply_adds()
        peak = ceiling.work / min(_times(ceiling.call, 0.0, _PEAK_ROUNDS))
        return {"peak": peak, "seconds": counter.get_total_flops() / peak}

    def again(self, file: str) -> dict[str, Any]:
        """Write the result of one more call of inference, once settled, to a .npy file."""
        np.save(file, _array(self._timed()[0]))
        return {}

    def settle(self, limit: float, least: int) -> dict[str, Any]:
        """Call until no more trials are made; at least `least` times, at most for `limit` seconds.

        Return the seconds of each call.
        """
        trials = self._ready.trials
        seconds: list[float] = []
        quiet, count = 0, -1 if trials is None else trials()
        wanted = _WARM_CALLS if trials is None else _QUIET_CALLS
        while sum(seconds) < limit and (quiet < wanted or len(seconds) < least):
            seconds.append(self._timed()[1])
            before, count = count, -1 if trials is None else trials()
            quiet = quiet + 1 if count == before else 0
        return {"seconds": seconds, "settled": quiet >= wanted, "trials": max(count, 0)}

    def time(self, seconds: float, least: int) -> dict[str, Any]:
        """Call for `seconds`, at least `least` times. Return the seconds of each call.

        One call before these is not timed.
        """
        self._timed()  # another process has used the caches
        return {"seconds": _times(self._ready.run, seconds, least)}

    def pair(self, rounds: int, seconds: float, least: int) -> dict[str, Any]:
        """Measure this peer in turn with what it replaces, in one process.

        Return the medians of both in each round, in seconds, and the largest difference of their
        results (see `relative_error`). For training, whose result is a loss, the difference is 0.
        """
        assert self._ready.replaced is not None
        own, replaced, error = [], [], 0.0
        for _ in range(rounds):
            ours = _array(self._timed()[0]).astype(np.float64)
            own.append(median(self.time(seconds, least)["seconds"]))
            with self._ready.replaced() as run:
                theirs = _array(run()).astype(np.float64)
                replaced.append(median(_times(run, seconds, least)))
            if not self.job.train:
                error = max(error, relative_error(ours, theirs))
        return {"own": own, "replaced": replaced, "difference": error}

    def layers(self) -> dict[str, Any]:
        """Return the report of this process and the order of the layers."""
        return {
            "report": report_all().to_dict(),
            "order": convolution_notations(self._model, self._images),
        }

    def memory(self, calls: int) -> dict[str, Any]:
        """Return the bytes at the peak of some calls, or None if the system does not tell.

        This is the last order. The process first frees all that the calls do not need.
        """
        run, alone = self._ready.run, self._ready.alone
        del self._model
        self._prepared = None
        if alone is not None:
            alone()
        run()
        trim()
        if not restart_peak():
            return {"peak": None}
        for _ in range(calls):
            run()
        return {"peak": peak_bytes()}

    @property
    def _ready(self) -> Prepared:
        assert self._prepared is not None, "prepare comes first"
        return self._prepared

    def _timed(self) -> tuple[Any, float]:
        run = self._ready.run
        started = perf_counter()
        result = run()
        return result, perf_counter() - started


def _array(result: Any) -> Any:
    """Return the result of a call in a form that NumPy can read."""
    if isinstance(result, torch.Tensor):
        result = result.cpu()
        # NumPy has no bfloat16.
        result = result.float() if result.dtype is torch.bfloat16 else result
    return np.asarray(result)


def _times(run: Run, seconds: float, least: int) -> list[float]:
    taken: list[float] = []
    while sum(taken) < seconds or len(taken) < least:
        started = perf_counter()
        run()
        taken.append(perf_counter() - started)
    return taken


if __name__ == "__main__":
    serve(lambda: PeerWorker(Job.from_dict(json.loads(sys.argv[1]))))
