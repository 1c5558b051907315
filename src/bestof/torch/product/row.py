"""A row of the table of alternatives: one implementation of a matrix product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.convolution.alternative import ErrorBound, Reach, summation_bound
from bestof.torch.product.problem import ProductProblem
from bestof.torch.shim import NativeProduct

Strides: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One implementation.

    function: (originals, problem, bias, a, b) -> C. It never changes its arguments. It returns a
        new dense tensor in rows, as PyTorch does.
    supports: whether the function answers a problem; it refuses no other way.
    bound: returns the promised error of a problem; None if PyTorch or oneDNN sums in float32.
    accuracy: the strictest level that allows it.
    compiled: returns the kernel that computes a problem without Python, for operands of these
        strides: (problem, strides of A, strides of B) -> kernel, or None if there is none. Without
        it, Python runs the function.
    shapes: the most problems of a process that it is tried for, because its library keeps a kernel
        for each of them; None if nothing is kept.
    packs: the algorithm for which B is packed and kept; "" if the row reads B itself.
    reach: how far one element can reach: the results that read it.
    """

    name: str
    function: Callable[..., Tensor]
    supports: Callable[[ProductProblem], bool]
    bound: Callable[[ProductProblem], ErrorBound] | None = None
    accuracy: Accuracy = "float32"
    compiled: Callable[[ProductProblem, Strides, Strides], NativeProduct | None] | None = None
    packs: str = ""
    shapes: int | None = None
    reach: Reach = "own"

    def bound_of(self, problem: ProductProblem) -> ErrorBound:
        """Return the error that this row promises for a problem."""
        if self.bound is None:
            return summation_bound(problem.k, "float32")
        return self.bound(problem)
