"""Sigmoid focal loss: loss and gradient in one native pass, or a stable formula in PyTorch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bestof.kernels import focal_loss
from bestof.torch.functional.reused_memory import ReusedMemory
from bestof.torch.ops.dtypes import SHORT
from bestof.torch.ops.guards import is_plain_call, is_plain_tensor

_REDUCTIONS = ("none", "mean", "sum")
_NATIVE = frozenset({torch.float32, torch.bfloat16})
_PART = 16384  # elements that one thread takes at a time, as in native/loss/focal.h
_gradients = ReusedMemory()


def sigmoid_focal_loss(
    inputs: Tensor,
    targets: Tensor,
    alpha: float = 0.25,
    gamma: float = 2,
    reduction: str = "none",
) -> Tensor:
    """Return the focal loss (Lin et al., 2017) of logits, as torchvision.ops.sigmoid_focal_loss.

    With p = sigmoid(inputs), ce the binary cross entropy of p, om = p (1 - targets) +
    (1 - p) targets and a_t = alpha targets + (1 - alpha)(1 - targets), the loss of an element is
    a_t * om ** gamma * ce.

    inputs: logits of any shape. Each finite logit gives a finite loss and gradient if gamma >= 0.
    targets: the same shape, in [0, 1]; any dtype. alpha: in [0, 1], or -1: a_t is 1.
    reduction: "none", "mean" or "sum".
    float16 and bfloat16 are computed in float32; "mean" and "sum" then return float32.

    A native kernel computes float32 and bfloat16 tensors on the CPU; their first backward pass
    only multiplies by the upstream gradient. The process keeps the memory of one gradient of more
    than 32 MiB for the next call. PyTorch computes everything else: other devices and
    dtypes, gamma < 0, gradients of targets, double backward, transforms of torch.func and
    torch.compile.

    Raises ValueError for another reduction, an alpha outside [0, 1] that is not -1, or targets of
    another shape; TypeError for an alpha or gamma that is no number.
    """
    _check(inputs, targets, alpha, gamma, reduction)
    if _is_native(inputs, targets, gamma):
        result: Tensor = _FocalLoss.apply(  # type: ignore[no-untyped-call]  # of torch
            inputs, targets, float(alpha), float(gamma), reduction
        )
        return result
    return _formula(inputs, targets, alpha, gamma, reduction)


def _check(inputs: Tensor, targets: Tensor, alpha: float, gamma: float, reduction: str) -> None:
    for name, value in (("alpha", alpha), ("gamma", gamma)):
        if not isinstance(value, (int, float)):
            raise TypeError(f"{name}: expected a number; got {type(value).__name__}")
    if not 0 <= alpha <= 1 and alpha != -1:
        raise ValueError(
            f"Invalid alpha value: {alpha}. alpha must be in the range [0,1] or -1 for ignore."
        )
    if reduction not in _REDUCTIONS:
        raise ValueError(
            f"Invalid Value for arg 'reduction': '{reduction}'. "
            "Supported reduction modes: 'none', 'mean', 'sum'"
        )
    if inputs.shape != targets.shape:
        raise ValueError(
            f"Target size ({targets.shape}) must be the same as input size ({inputs.shape})"
        )


def _is_native(inputs: Tensor, targets: Tensor, gamma: float) -> bool:
    """Return whether the native kernel may answer: only plain autograd observes the call."""
    return is_plain_call() and (
        inputs.dtype in _NATIVE
        and is_plain_tensor(inputs)
        and is_plain_tensor(targets)
        and not targets.requires_grad
        and 0 <= gamma < math.inf
        and inputs.numel() > 0
    )


class _FocalLoss(torch.autograd.Function):
    """The native loss. Its forward pass also computes the gradient.

    The first backward pass scales that gradient in place and returns it, so a training step
    allocates nothing more. A later one (retain_graph) computes it again. Inputs and targets are
    kept for that, and for double backward.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, targets: Tensor, alpha: float, gamma: float, reduction: str
    ) -> Tensor:
        loss, gradient = _native(inputs, targets, alpha, gamma, reduction)
        ctx.save_for_backward(inputs, targets)
        ctx.settings = alpha, gamma, reduction
        ctx.kept = [gradient]  # a list: two threads cannot pop the same gradient
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs, targets = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: the gradient itself is differentiated
            loss = _formula(inputs, targets, *ctx.settings)
            (slope,) = torch.autograd.grad(loss, inputs, upstream, create_graph=True)
            return slope, None, None, None, None
        try:
            gradient = ctx.kept.pop()
        except IndexError:
            _, gradient = _native(inputs, targets, *ctx.settings)
        if not any(upstream.stride()):  # one number, perhaps expanded by a reduction
            upstream = upstream[(0,) * upstream.dim()]
        if upstream.dim() > 0 or upstream.item() != 1.0:
            gradient.mul_(upstream)
        return gradient, None, None, None, None


def _native(
    inputs: Tensor, targets: Tensor, alpha: float, gamma: float, reduction: str
) -> tuple[Tensor, Tensor]:
    """Return the reduced loss, and the gradient in the dtype of inputs."""
    x = inputs.detach().to(torch.float32).contiguous()
    loss: Any
    loss, gradient = focal_loss(
        x,
        targets.detach().to(torch.float32).contiguous(),
        alpha=alpha,
        gamma=gamma,
        scale=1 / x.numel() if reduction == "mean" else 1.0,
        reduction="none" if reduction == "none" else "sum",
        gradient=_gradients.empty_like(x),
        threads=min(torch.get_num_threads(), -(-x.numel() // _PART)),
    )
    if reduction == "none":
        return loss.to(inputs.dtype), gradient.to(inputs.dtype)
    return x.new_tensor(loss), gradient.to(inputs.dtype)


def _formula(inputs: Tensor, targets: Tensor, alpha: float, gamma: float, reduction: str) -> Tensor:
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
