"""One matrix product as a value: the problem of the selector of products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bestof.accuracy import DEFAULT_ACCURACY, Accuracy
from bestof.torch.ops.dtypes import name_of

Layout = Literal["rows", "strided rows", "columns", "strided columns"]
"""How a matrix lies in memory: by rows or by columns, with or without gaps between them."""


_backward_pass = torch._C._current_graph_task_id
_NONE = -1  # the number of the backward pass if this thread runs none


class ProductProblem(NamedTuple):
    """One product C[m, n] = sum over k of A[m, k] B[k, n], of `batch` pairs of matrices.

    Sizes are in elements. `operation` is PyTorch's: `mm` and `bmm`, or `addmm` and `baddbmm`, which
    add a bias [n] to every row. PyTorch's kernels differ between them, so the name distinguishes
    problems of equal sizes. `frozen` says that no gradient is recorded or computed, so that B may
    stay as it is from call to call; it is False for batches. `dtype` is that of all operands and of
    the result.
    """

    operation: str
    batch: int
    m: int
    k: int
    n: int
    a_layout: Layout = "rows"
    b_layout: Layout = "rows"
    threads: int = 1
    accuracy: Accuracy = DEFAULT_ACCURACY
    frozen: bool = False
    dtype: str = "float32"

    @classmethod
    def of(cls, operation: str, a: Tensor, b: Tensor, accuracy: Accuracy) -> ProductProblem:
        """Return the problem of two matrices, or of two batches of matrices, that fit."""
        batch = a.shape[0] if a.dim() == 3 else 1
        m, k = a.shape[-2:]
        return cls(
            operation,
            batch,
            m,
            k,
            b.shape[-1],
            layout_of(a.shape[-2:], a.stride()[-2:]),
            layout_of(b.shape[-2:], b.stride()[-2:]),
            torch.get_num_threads(),
            accuracy,
            a.dim() == 2 and not torch.is_grad_enabled() and _backward_pass() == _NONE,
            name_of(a.dtype),
        )

    @property
    def is_batched(self) -> bool:
        """Whether the operands have three dimensions."""
        return self.operation in ("bmm", "baddbmm")

    @property
    def has_bias(self) -> bool:
        return self.operation in ("addmm", "baddbmm")

    @property
    def flops(self) -> int:
        """Additions and multiplications, without the bias."""
        return 2 * self.batch * self.m * self.k * self.n

    def canonical(self) -> str:
        """Return the canonical text for the store, with everything that distinguishes problems."""
        return f"{self} threads={self.threads}"

    def __str__(self) -> str:
        """Return operation and sizes, then the differences from dense rows and from float32.

        Threads are left out, because reports name them once with the host.
        """
        batch = f"b{self.batch}," if self.is_batched else ""
        words = [f"{self.operation} {batch}m{self.m},k{self.k},n{self.n}"]
        words += [
            f"{operand}={layout}"
            for operand, layout in (("a", self.a_layout), ("b", self.b_layout))
            if layout != "rows"
        ]
        if self.dtype != "float32":
            words.append(self.dtype)
        if self.accuracy != DEFAULT_ACCURACY:
            words.append(self.accuracy)
        if self.frozen:
            words.append("frozen")
        return " ".join(words)


def layout_of(shape: Sequence[int], strides: Sequence[int]) -> Layout:
    """Return the layout of a matrix whose rows or columns are dense; rows if both are."""
    (rows, columns), (row, column) = shape, strides
    if column == 1 or columns == 1:
        return "rows" if row == columns or rows == 1 else "strided rows"
    return "columns" if column == rows or columns == 1 else "strided columns"
