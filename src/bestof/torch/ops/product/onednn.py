"""oneDNN's product, by the operator that compiled programs call.

PyTorch's float32 products go to MKL, which picks its code by the maker of the processor. oneDNN
asks for the instructions that the processor has.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from bestof.torch.backends.shim import Native, onednn
from bestof.torch.ops.onednn import is_known
from bestof.torch.ops.product.problem import ProductProblem
from bestof.torch.ops.product.pytorch_product import PyTorchProduct

_MANY = 128
"""Rows of A that make up for a copy of B."""

SHAPES = 64
"""Problems that are tried with oneDNN's product. oneDNN compiles kernels for each shape, and keeps
the last 1,024: 0.4 MiB for each matrix product on a Zen 3. No function that PyTorch exports frees
them. 3,000 lengths of text drawn at random thus took a process from 240 to 1,020 MiB."""


@cache
def is_there() -> bool:
    """Return whether PyTorch has the operator, by a version of oneDNN that was swept."""
    backends: Any = torch.backends  # has no annotations
    has_operator = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return bool(backends.mkldnn.is_available()) and has_operator and is_known()


def supports(problem: ProductProblem) -> bool:
    """Return whether the operator computes a problem without a costly copy of B.

    It takes no batches, and copies B from rows into columns first: one row times 4,096 x 4,096 took
    12 times as long as MKL, so few rows are tried with B in columns only. The program may have
    switched oneDNN off.
    """
    is_read_in_place = problem.b_layout in ("columns", "strided columns")
    is_worth = not problem.is_batched and (is_read_in_place or problem.m >= _MANY)
    return is_worth and torch._C._get_mkldnn_enabled() and is_there()


def product(
    _originals: PyTorchProduct, _problem: ProductProblem, bias: Tensor | None, a: Tensor, b: Tensor
) -> Tensor:
    linear: Any = torch.ops.mkldnn._linear_pointwise
    return linear(a, b.t(), bias, "none", [], "")  # type: ignore[no-any-return]


def compiled(_problem: ProductProblem, *_operands: Any) -> Native | None:
    """Return the kernel for calls without Python."""
    return onednn()
