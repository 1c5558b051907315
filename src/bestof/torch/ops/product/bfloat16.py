"""Products of operands rounded to bfloat16, with sums in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from bestof.torch.ops.onednn import has_bfloat16
from bestof.torch.ops.product.problem import ProductProblem
from bestof.torch.ops.product.pytorch_product import PyTorchProduct


def supports(_problem: ProductProblem) -> bool:
    """Return whether PyTorch multiplies in bfloat16 and sums in float32 here."""
    return has_bfloat16()


def product(
    originals: PyTorchProduct, problem: ProductProblem, bias: Tensor | None, a: Tensor, b: Tensor
) -> Tensor:
    """Return A B, plus the bias, which is added in float32."""
    operation = "bmm" if problem.is_batched else "mm"
    result = originals(operation, None, a.to(torch.bfloat16), b.to(torch.bfloat16)).float()
    return result if bias is None else result.add_(bias)
