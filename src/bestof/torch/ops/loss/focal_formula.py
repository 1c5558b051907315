"""The focal loss by PyTorch's operators. Each finite logit has a finite loss and gradient."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from bestof.torch.ops.dtypes import SHORT


def formula(inputs: Tensor, targets: Tensor, alpha: float, gamma: float, reduction: str) -> Tensor:
    """Return the reduced loss by PyTorch's operations. It can be differentiated twice.

    If targets are 0 or 1, then om = sigmoid(z) and ce = softplus(z) with z = inputs (1 - 2
    targets). Powers are taken as exp(log om), because the derivative of om ** gamma is infinite
    where om underflows. For other targets, om > 0.
    """
    dtype = torch.float32 if inputs.dtype in SHORT else inputs.dtype
    x, y = inputs.to(dtype), targets.to(dtype)
    zero = torch.zeros((), dtype=dtype, device=x.device)
    hard = (y == 0) | (y == 1)
    if targets.requires_grad:  # the form for 0 and 1 is constant in the targets
        hard = torch.zeros_like(hard)
    # Each form gets harmless operands where the other form holds, because an infinite slope times 0
    # is NaN.
    sure = _sure(torch.where(hard, x * (1 - 2 * y), zero), gamma)
    between = _between(torch.where(hard, zero, x), torch.where(hard, zero + 0.5, y), gamma)
    loss = torch.where(hard, sure, between)
    if alpha >= 0:
        loss = (alpha * y + (1 - alpha) * (1 - y)) * loss
    if reduction == "none":
        return loss.to(inputs.dtype)
    return loss.mean() if reduction == "mean" else loss.sum()


def _sure(z: Tensor, gamma: float) -> Tensor:
    return torch.exp(gamma * functional.logsigmoid(_near(z))) * -functional.logsigmoid(-z)


def _between(x: Tensor, y: Tensor, gamma: float) -> Tensor:
    near = _near(x)
    om = torch.sigmoid(near) * (1 - y) + torch.sigmoid(-near) * y
    ce = -(1 - y) * functional.logsigmoid(-x) - y * functional.logsigmoid(x)
    return om**gamma * ce


def _near(x: Tensor) -> Tensor:
    """Return x, clamped to the range in which om changes. Outside, the slope must be 0.

    Beyond 1000, the smaller of om and 1 - om underflows in float64 as well. There ce may be so
    large that gamma * ce overflows, and infinity times the slope 0 would be NaN.
    """
    return x.clamp(-1000, 1000)
