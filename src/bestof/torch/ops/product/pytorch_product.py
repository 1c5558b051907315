"""PyTorch's own kernels of products, called past the dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bestof.torch.ops.pytorch_kernel import KEYS

# In the order of native/torch/entries.cpp.
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


class PyTorchProduct:
    """The kernels of products that were in place when this was made.

    kernels: objects of torch.library.get_kernel, in the order of PRODUCTS; by default, what is in
        place now.
    """

    def __init__(self, kernels: Sequence[Any] | None = None) -> None:
        if kernels is None:
            kernels = [torch.library.get_kernel(name, "CPU") for name in PRODUCTS]
        self._calls: dict[str | int, Any] = {}
        for place, kernel in enumerate(kernels):
            name = PRODUCTS[place].removeprefix("aten::")
            self._calls[name] = self._calls[place] = kernel.call_boxed

    def __call__(self, operation: str | int, bias: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
        """Return A B, plus the bias if there is one. An operation is a name or its place."""
        call = self._calls[operation]
        if bias is None:
            return call(KEYS, a, b)  # type: ignore[no-any-return]  # has no annotations
        return call(KEYS, bias, a, b, beta=1, alpha=1)  # type: ignore[no-any-return]
