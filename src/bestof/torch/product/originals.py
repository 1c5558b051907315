"""PyTorch's own kernels of products, called past the dispatcher."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bestof.errors import TorchError
from bestof.torch.product.packed import PackedMatrices
from bestof.torch.shim import PRODUCTS


class Originals:
    """The kernels that were in place when this was made, and the matrices packed for others.

    Raises TorchError if PyTorch cannot hand its kernels out.
    """

    def __init__(self) -> None:
        if not hasattr(torch.library, "get_kernel"):
            raise TorchError(
                f"PyTorch {torch.__version__} has no torch.library.get_kernel, by which bestof "
                f"keeps PyTorch's own product as the first alternative; install torch 2.13 or newer"
            )
        self.packed = PackedMatrices()
        self.kernels: list[Any] = [
            torch.library.get_kernel(f"aten::{name}", "CPU") for name in PRODUCTS
        ]
        self._calls = {
            name: kernel.call_boxed for name, kernel in zip(PRODUCTS, self.kernels, strict=True)
        }
        self._keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def __call__(self, operation: str, bias: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
        """Return A B, plus the bias if there is one."""
        call = self._calls[operation]
        if bias is None:
            return call(self._keys, a, b)  # type: ignore[no-any-return]  # has no annotations
        return call(self._keys, bias, a, b, beta=1, alpha=1)  # type: ignore[no-any-return]
