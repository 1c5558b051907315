"""oneDNN's product, by the operator that compiled programs call.

PyTorch's float32 products go to MKL, which picks its code by the maker of the processor. oneDNN
asks for the instructions that the processor has.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from bestof.torch.product.originals import Originals
from bestof.torch.product.problem import ProductProblem
from bestof.torch.product.row import Strides
from bestof.torch.shim import NativeProduct, onednn


@cache
def is_there() -> bool:
    """Return whether PyTorch was built with oneDNN and has the operator."""
    backends: Any = torch.backends  # has no annotations
    return bool(backends.mkldnn.is_available()) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def supports(problem: ProductProblem) -> bool:
    """Return whether the operator computes a problem: it takes no batches."""
    return not problem.is_batched and is_there()


def product(
    _originals: Originals, _problem: ProductProblem, bias: Tensor | None, a: Tensor, b: Tensor
) -> Tensor:
    """Return A B, plus the bias."""
    linear: Any = torch.ops.mkldnn._linear_pointwise
    return linear(a, b.t(), bias, "none", [], "")  # type: ignore[no-any-return]  # has no annotations


def compiled(_problem: ProductProblem, _a: Strides, _b: Strides) -> NativeProduct | None:
    """Return the kernel for calls without Python."""
    return onednn()
