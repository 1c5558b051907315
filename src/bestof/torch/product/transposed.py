"""The product of the transposed operands, C = (B^T A^T)^T, by PyTorch's own kernel.

BLAS libraries run other code for the two shapes if C has few rows or few columns. C is transposed
afterwards, so this is tried only for such shapes.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from bestof.kernels.addresses import c_calls
from bestof.torch.product.originals import Originals
from bestof.torch.product.problem import ProductProblem
from bestof.torch.product.row import Strides
from bestof.torch.shim import NativeProduct, transposed_product

_FEW = 32
"""Rows or columns of C. With more of them the transposition of C costs 10 % of a product with
k = 768, measured on a Cascade Lake Xeon."""
_COLUMNS = ("columns", "strided columns")


def supports(problem: ProductProblem) -> bool:
    """Return whether C has few rows and B lies in columns, or few columns and A lies in rows.

    In other layouts the few vectors of the one operand are read across: 2 rows times 1,024 x 1,024
    in rows took 3 to 25 times as long as PyTorch's own kernel.
    """
    return (problem.m <= _FEW and problem.b_layout in _COLUMNS) or (
        problem.n <= _FEW and problem.a_layout not in _COLUMNS
    )


def product(
    originals: Originals, problem: ProductProblem, bias: Tensor | None, a: Tensor, b: Tensor
) -> Tensor:
    """Return A B, plus the bias."""
    column = None if bias is None else bias.unsqueeze(1)
    transposed = originals(problem.operation, column, b.mT, a.mT)
    rows = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=a.dtype, device="cpu")
    return rows.copy_(transposed.mT)  # `contiguous` would keep odd strides of one row or column


def compiled(_problem: ProductProblem, _a: Strides, _b: Strides) -> NativeProduct:
    """Return the kernel for calls without Python."""
    return _kernel()


@cache
def _kernel() -> NativeProduct:
    return transposed_product(c_calls())
