"""Neighbours of a product: products of the same kind with nearly the same sizes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from math import log

from bestof.torch.ops.product.problem import ProductProblem

# Problems of one kind that are remembered. A program of varying lengths has hundreds; the last ones
# matter.
_REMEMBERED = 256
_KINDS = 64
# Beyond this ratio of their sizes, taken together, other kernels win.
_NEAR = log(4.0)
# Kernels for so few rows or columns of C have code for each number. What won for 1 row took 8 times
# as long as PyTorch's own kernel for 2.
_FEW = 16


class Neighbourhood:
    """Remembers problems, and returns those near another one, the nearest first.

    Two problems are near if they differ in their sizes alone, and the ratios of their sizes
    multiply to at most four. Few rows or columns of C must agree. A selector calls it with its lock
    held, so it needs no lock.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, dict[ProductProblem, None]] = {}

    def __call__(self, problem: ProductProblem) -> Iterable[ProductProblem]:
        """Return the remembered problems near `problem`, and remember it."""
        kind = problem._replace(batch=0, m=0, k=0, n=0)
        if len(self._kinds) >= _KINDS and kind not in self._kinds:
            del self._kinds[next(iter(self._kinds))]
        members = self._kinds.setdefault(kind, {})
        distances = {other: _distance(problem, other) for other in members if other != problem}
        members[problem] = None
        if len(members) > _REMEMBERED:
            del members[next(iter(members))]
        near = [
            other
            for other, distance in distances.items()
            if distance <= _NEAR and _few(other) == _few(problem)
        ]
        return sorted(near, key=distances.__getitem__)


def _few(problem: ProductProblem) -> tuple[int, ...]:
    return tuple(size if size <= _FEW else 0 for size in (problem.m, problem.n))


def _distance(one: ProductProblem, other: ProductProblem) -> float:
    pairs = ((one.batch, other.batch), (one.m, other.m), (one.k, other.k), (one.n, other.n))
    return sum(abs(log(size / another)) for size, another in pairs)
