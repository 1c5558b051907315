"""The ceilings of the machine, measured in turn with the products."""

from __future__ import annotations

from bestof import kernels
from bestof.bench import machine
from bestof.bench.convolution.run import Run
from bestof.bench.product.case import Case
from bestof.selection.identity.host import host

_RUNS = {
    "multiply-add": machine.multiply_adds(),
    **{f"copy, {name}": copy for name, copy in machine.copies().items()},
}


def version() -> str:
    processor = host().split(";")[0]
    return f"{processor}, {kernels.isa()}, {machine.openmp_threads()} threads"


def prepare(_case: Case) -> dict[str, Run]:
    """Return the same runs for every case; `work` is FLOPs of the multiply-adds, bytes of the
    copies.
    """
    return {name: Run(run.call, list, run.work) for name, run in _RUNS.items()}
