"""The ways in which a program changes the weights of a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def _step(weight: nn.Parameter) -> None:
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=0.1).step()


def _swap_two(weight: nn.Parameter) -> None:
    weight.data[[0, 1]] = weight.data[[1, 0]]


WEIGHT_CHANGES: dict[str, Callable[[nn.Parameter], object]] = {
    "in place": lambda weight: weight.detach().mul_(2),
    "through data": lambda weight: weight.data.mul_(2),
    "one element through data": lambda weight: weight.data.view(-1)[7].add_(1),
    "the last element through data": lambda weight: weight.data.view(-1)[-1].add_(1),
    "two rows or filters exchanged through data": _swap_two,
    "signs through data": lambda weight: weight.data.neg_(),
    "other data": lambda weight: setattr(weight, "data", torch.randn_like(weight)),
    "through numpy": lambda weight: weight.detach().numpy().__imul__(2),
    "an optimizer's step": _step,
}
