"""What the tests of products share: an order of one alternative, and products that are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import bestof.torch as integration
from bestof.selection import Fixed, use_policy
from bestof.selection.policies.policy import Search
from bestof.torch.backends.shim import OperatorShim
from bestof.torch.dispatch.override import Override
from bestof.torch.dispatch.overrides import operation_override
from bestof.torch.ops.product.packed import PackedMatrices
from bestof.torch.ops.product.problem import ProductProblem
from bestof.torch.ops.product.product import Product
from bestof.torch.ops.row import Row

ROWS = Product().rows


class Planted(Product):
    """Products by other rows, of which the first is PyTorch's own kernel."""

    def __init__(self, *rows: Row[ProductProblem]) -> None:
        super().__init__()
        self.rows = rows


class Order:
    """Chooses one alternative where it applies, else PyTorch's own kernel."""

    def __init__(self, name: str) -> None:
        self._name = name

    def start(self, alternatives: Sequence[str]) -> Search:
        name = self._name if self._name in alternatives else alternatives[0]
        return Fixed(name).start(alternatives)


def enable(name: str = "as is", **kernel: Any) -> Override:
    """Return the override, with one alternative in force."""
    use_policy(Order(name))
    integration.enable({"kernel": kernel})
    found = operation_override("product")
    assert found is not None
    assert found.is_registered
    return found


def shim_of(override: Override) -> OperatorShim:
    assert override.shim is not None
    return override.shim


def packed_of(override: Override) -> PackedMatrices:
    assert isinstance(override.operation, Product)
    return override.operation.packed


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands() -> tuple[Tensor, Tensor, Tensor]:
    """Return a bias and two matrices with 663,552 multiply-adds, above the least."""
    return random(72, seed=2), random(96, 96), random(96, 72, seed=1)
