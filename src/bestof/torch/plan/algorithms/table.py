"""The table of the algorithms for fused layers: PyTorch's own first, then every native kernel."""

from __future__ import annotations

from functools import cache

from bestof.kernels import algorithms
from bestof.torch.plan.algorithms.algorithm import Algorithm
from bestof.torch.plan.algorithms.native import Native
from bestof.torch.plan.algorithms.onednn import OneDnn
from bestof.torch.plan.algorithms.product import products
from bestof.torch.plan.algorithms.pytorch import PyTorch
from bestof.torch.plan.layers.problem import FusedProblem
from bestof.torch.rows.offer import is_offered

PYTORCH = PyTorch()


@cache
def table() -> dict[str, Algorithm]:
    """Return the algorithms that races try, by name, in the order in which they are tried."""
    rows = [OneDnn(), PYTORCH, *map(Native, algorithms()), *products()]
    return {row.name: row for row in rows}


@cache
def _unpacked() -> dict[str, Algorithm]:
    rows = [Native(name, packs=False) for name in algorithms()]
    return {row.name: row for row in rows}


def algorithm(name: str) -> Algorithm:
    """Return an algorithm by its name, also one that no race tries; KeyError if there is none."""
    row = table().get(name)
    return _unpacked()[name] if row is None else row


def applicable(problem: FusedProblem) -> list[str]:
    """Return the names of the algorithms that race for a problem, in order."""
    return [name for name, row in table().items() if takes_part(row, problem)]


def takes_part(row: Algorithm, problem: FusedProblem) -> bool:
    """Return whether an algorithm races for a problem: it may, and the configuration has it.

    Configurations name native kernels as eager calls do. PyTorch's own stay.
    """
    return row.supports(problem) and (row.trusted or is_offered(f"native {row.name}"))


def promised_error(problem: FusedProblem, name: str | None) -> float:
    """Return the rms error that an algorithm promises, relative to the rms of the sums.

    For None, return the largest promise of the native kernels that may be chosen.
    """
    if name is not None:
        return algorithm(name).error(problem)
    rows = (row for row in table().values() if not row.trusted and row.can_run(problem))
    return max((row.error(problem) for row in rows), default=0.0)
