"""Sigmoid focal loss: the operation "focal loss" chooses what computes loss and gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bestof.accuracy import DEFAULT_ACCURACY
from bestof.selection.state.budget import lifted
from bestof.torch.ops import table
from bestof.torch.ops.guards import in_batches, is_plain_call
from bestof.torch.ops.loss.focal_formula import formula
from bestof.torch.ops.loss.focal_loss import COMPARED
from bestof.torch.ops.operation import Call, Operation
from bestof.torch.rows.offer import is_chosen_for
from bestof.torch.rows.row_selector import row_selector

_REDUCTIONS = ("none", "mean", "sum")


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

    bestof chooses between a native kernel and PyTorch's operators for float32 and bfloat16 tensors
    on the CPU. The forward pass computes the gradient too, and the first backward pass only
    multiplies it by the upstream gradient. PyTorch computes everything else: other devices, other
    dtypes, gamma < 0, gradients of targets, double backward, transforms of torch.func and
    torch.compile.

    Raises ValueError for another reduction, an alpha outside [0, 1] that is not -1, or targets of
    another shape; TypeError for an alpha or gamma that is no number.
    """
    _check(inputs, targets, alpha, gamma, reduction)
    wanted = torch.is_grad_enabled() and inputs.requires_grad
    call = _call(inputs, targets, alpha, gamma, reduction, wanted)
    if call is None:
        return formula(inputs, targets, alpha, gamma, reduction)
    if not wanted:
        return _chosen(call)[0]
    result: Tensor = _FocalLoss.apply(inputs, targets, call)  # type: ignore[no-untyped-call]  # of torch
    return result


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


def _call(inputs: Tensor, targets: Tensor, *settings: float | str | bool) -> Call | None:
    """Return the call that bestof chooses for; None if PyTorch answers."""
    operation = _operation()
    if targets.requires_grad or not is_plain_call() or not is_chosen_for(operation):
        return None
    return operation.call(DEFAULT_ACCURACY, inputs, targets, *settings)


def _operation() -> Operation[Any]:
    return table.named("focal loss", "sigmoid_focal_loss")


def _chosen(call: Call) -> tuple[Tensor, ...]:
    """Return the loss, and its gradient if the problem has one, by the chosen row.

    Trials of large losses compute their first logits alone. Until they have decided, the native
    kernel computes the loss. All trials of a problem take a few milliseconds, so none waits for the
    budget: meanwhile PyTorch's operators would compute small losses.
    """
    rows, (problem, operands) = row_selector(_operation()), call
    rows.calls.count(problem)
    results: tuple[Tensor, ...]
    is_small, row = operands[0].numel() <= COMPARED, rows.chosen(problem)
    if is_small and row is not None:
        results = rows.selector(problem, *operands)
        return results
    if row is None:
        part = operands if is_small else [one.view(-1)[:COMPARED] for one in operands]
        with lifted():
            results = rows.selector(problem, *part)
        if is_small:
            return results
        row = rows.chosen(problem) or rows.rows.get("native", rows.operation.rows[0])
    results = row.function(rows.original, problem, *operands)
    return results


class _FocalLoss(torch.autograd.Function):
    """The loss with a gradient, which the forward pass computes.

    The first backward pass scales that gradient in place and returns it, so a training step
    allocates nothing more. A later one (retain_graph) computes it again. Inputs and targets are
    kept for that, and for double backward.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, targets: Tensor, call: Call) -> Tensor:
        loss, gradient = _chosen(call)
        # Tensors of torch.inference_mode cannot be saved.
        ctx.save_for_backward(inputs, targets.clone() if targets.is_inference() else targets)
        ctx.problem = call.problem
        ctx.kept = [gradient]  # a list: two threads cannot pop the same gradient
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs, targets = ctx.saved_tensors
        settings = ctx.problem.alpha, ctx.problem.gamma, ctx.problem.reduction
        if torch.is_grad_enabled():  # create_graph: the gradient itself is differentiated
            loss = formula(inputs, targets, *settings)
            (slope,) = torch.autograd.grad(loss, inputs, upstream, create_graph=True)
            return slope, None, None
        try:
            gradient = ctx.kept.pop()
        except IndexError:
            again = _operation().call(DEFAULT_ACCURACY, inputs, targets, *settings, True)
            assert again is not None
            _, gradient = _chosen(again)
        if in_batches(upstream):
            return (gradient * upstream).to(gradient.dtype), None, None
        if not any(upstream.stride()):  # one number, perhaps expanded by a reduction
            upstream = upstream[(0,) * upstream.dim()]
        if upstream.dim() > 0 or upstream.item() != 1.0:
            gradient.mul_(upstream)
        return gradient, None, None
