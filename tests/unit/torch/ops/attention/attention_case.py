"""What the tests of attention share: an order of one alternative, operands, and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bestof.selection import Fixed
from bestof.selection.policies.policy import Search
from bestof.torch.dispatch.override import Override
from bestof.torch.dispatch.overrides import operation_override

NAMES = ("as is", "native")
UNIT = torch.finfo(torch.float32).eps / 2
attend = functional.scaled_dot_product_attention
ON = {"kernel": {"attention": True}}


class Order:
    def __init__(self, name: str) -> None:
        self._name = name

    def start(self, alternatives: Sequence[str]) -> Search:
        return Fixed(self._name).start(alternatives)


class OneEach:
    """The first problem settles on the first name, the second problem on the second one."""

    def __init__(self, *names: str) -> None:
        self._names = list(names)

    def start(self, alternatives: Sequence[str]) -> Search:
        return Fixed(self._names.pop(0)).start(alternatives)


def override() -> Override:
    """Return that of the forward pass."""
    found = operation_override("attention")
    assert found is not None
    return found


def backward_override() -> Override:
    found = operation_override("attention_backward")
    assert found is not None
    return found


def decisions() -> list[str | None]:
    """Return what was chosen for the first problem of each pass."""
    both = override(), backward_override()
    return [one.selector.report().problems[0].decision for one in both]


def problems() -> tuple[Any, ...]:
    return tuple(override().selector.report().problems)


def operands(
    *, queries: int = 20, keys: int = 33, heads: int = 4, shared: int = 4, size: int = 16
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, heads, queries, size, generator=generator)
    k, v = (torch.randn(2, shared, keys, size, generator=generator) for _ in range(2))
    return q, k, v


def mask_of(kind: str) -> Tensor | None:
    generator = torch.Generator().manual_seed(1)
    match kind:
        case "added":
            return torch.randn(20, 33, generator=generator)
        case "boolean":
            return torch.rand(2, 1, 20, 33, generator=generator) < 0.7
        case "keys":
            return torch.rand(2, 1, 1, 33, generator=generator) < 0.7
        case "hidden":
            mask = torch.zeros(20, 33)
            mask[3] = -torch.inf
            mask[5] = torch.finfo(torch.float32).min
            return mask
        case _:
            return None


def hold(got: Tensor, expected: Tensor, wide: Tensor, terms: int) -> None:
    """`terms` roundings of numbers up to the largest, from float64; the layout is PyTorch's."""
    assert got.stride() == expected.stride()
    assert got.dtype is expected.dtype
    bound = UNIT * terms * max(1.0, wide.abs().max().item())
    assert not ((got - wide).abs() > bound).any()
    assert torch.isfinite(got).all()
