"""The ceilings of the machine, measured in turn with the convolutions."""

from __future__ import annotations

from bestof import kernels
from bestof.bench import machine
from bestof.bench.convolution.case import Case
from bestof.bench.convolution.run import Run

_RUNS = {
    "multiply-add": machine.multiply_adds(),
    **{f"copy, {name}": copy for name, copy in machine.copies().items()},
}


def version() -> str:
    return f"{kernels.isa()}, {machine.openmp_threads()} threads"


def prepare(_case: Case) -> dict[str, Run]:
    """Return the same runs for every case; `work` is FLOPs of the multiply-adds, bytes of the
    copies.
    """
    return {name: Run(run.call, list, run.work) for name, run in _RUNS.items()}
