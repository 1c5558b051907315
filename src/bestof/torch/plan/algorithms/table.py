"""The table of the algorithms for fused layers: PyTorch's own first, then every native kernel."""

from __future__ import annotations

from functools import cache

from bestof.kernels import algorithms
from bestof.torch.plan.algorithms.algorithm import Algorithm
from bestof.torch.plan.algorithms.inverted_residual import PRODUCTS, offered_name
from bestof.torch.plan.algorithms.native import Native
from bestof.torch.plan.algorithms.onednn import OneDnn
from bestof.torch.plan.algorithms.product import products
from bestof.torch.plan.algorithms.pytorch import PyTorch
from bestof.torch.plan.layers.problem import FusedProblem
from bestof.torch.rows.offer import is_offered, is_ordered

PYTORCH = PyTorch()


@cache
def table() -> dict[str, Algorithm]:
    """Return the algorithms that races try, by name, in the order of the trials."""
    rows = [OneDnn(), PYTORCH, *map(Native, algorithms()), *products()]
    return {row.name: row for row in rows}


@cache
def _unpacked() -> dict[str, Algorithm]:
    rows = [Native(name, packs=False) for name in algorithms()]
    return {row.name: row for row in rows}


def algorithm(name: str) -> Algorithm:
    """Return the algorithm of a name, also one that no race tries. KeyError for unknown names."""
    row = table().get(name)
    return _unpacked()[name] if row is None else row


def offered_names() -> list[str]:
    """Return the names that configurations have for the algorithms, but for PyTorch's own."""
    rows = [_offered_name(row) for row in table().values() if not row.trusted]
    return [*rows, *map(offered_name, PRODUCTS)]


def _offered_name(row: Algorithm) -> str:
    return f"native {row.name}"  # as rows of eager calls


def applicable(problem: FusedProblem) -> list[str]:
    """Return the names of the algorithms that race for a problem, in order."""
    return [
        name
        for name, row in table().items()
        if may_run(row, problem) and left_out(row, problem) is None
    ]


def may_run(row: Algorithm, problem: FusedProblem) -> bool:
    """Return whether an algorithm can compute a problem, and the configuration has it.

    PyTorch's own stay in any case.
    """
    return row.can_run(problem) and (row.trusted or is_offered(_offered_name(row)))


def left_out(row: Algorithm, problem: FusedProblem) -> str | None:
    """Return why a race leaves an algorithm out that could run; None if it is tried."""
    if row.supports(problem) or is_ordered(_offered_name(row)):
        return None
    return "another algorithm does the same work, and is known to be as fast for such layers"


def promised_error(problem: FusedProblem, name: str | None) -> float:
    """Return the rms error that an algorithm promises, relative to the rms of the sums.

    For None, return the largest promise of the native kernels that may be chosen.
    """
    if name is not None:
        return algorithm(name).error(problem)
    rows = (row for row in table().values() if not row.trusted and row.can_run(problem))
    return max((row.error(problem) for row in rows), default=0.0)
