"""Sigmoid focal loss: chooses between PyTorch's operators and a native kernel.

The kernel computes loss and gradient in one pass. `bestof.torch.sigmoid_focal_loss` asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestof import kernels
from bestof.accuracy import Accuracy
from bestof.torch.ops.comparison import Scale
from bestof.torch.ops.distance import peak
from bestof.torch.ops.dtypes import BFLOAT16, FLOAT32, name_of
from bestof.torch.ops.examples import random
from bestof.torch.ops.guards import is_plain_tensor
from bestof.torch.ops.loss.focal_formula import formula
from bestof.torch.ops.loss.reused_memory import ReusedMemory
from bestof.torch.ops.operation import Call
from bestof.torch.ops.rounding_operation import Part, RoundingOperation, units
from bestof.torch.ops.row import Row

COMPARED = 1024
"""The most logits that trials compute. The kernel is 5 times as fast as PyTorch's operators for so
many, and 50 times for millions, of which one trial would take a second."""

_PART = 16384  # elements that one thread takes at a time, as in native/loss/focal.h
_gradients = ReusedMemory()


class FocalLossProblem(NamedTuple):
    """A focal loss, and perhaps its gradient.

    most: the number of logits, raised to a power of two, and `COMPARED` at most. A detector meets a
        new number with each size of images.
    """

    most: int
    alpha: float
    gamma: float
    reduction: str
    gradient: bool
    threads: int
    dtype: str
    targets: str

    def canonical(self) -> str:
        """Return the canonical text for the store. It contains all that distinguishes problems."""
        return f"{self} alpha={self.alpha} threads={self.threads}"

    def __str__(self) -> str:
        words = [f"up to {self.most}", self.reduction, f"gamma={self.gamma}"]
        words += [self.dtype] * (self.dtype != FLOAT32.operands)
        words += [f"targets={self.targets}"] * (self.targets != self.dtype)
        return " ".join(words + ["gradient"] * self.gradient)


def as_is(
    _original: None, problem: FocalLossProblem, x: Tensor, targets: Tensor
) -> tuple[Tensor, ...]:
    """Return the loss, and its gradient if the problem has one, by PyTorch's operators.

    Hooks of the program on kept tensors, such as those of checkpoints, do not see these operators.
    """
    _, alpha, gamma, reduction, *_ = problem
    if not problem.gradient:
        return (formula(x, targets, alpha, gamma, reduction),)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(_kept, _kept):
        leaf = x.detach().requires_grad_()
        loss = formula(leaf, targets, alpha, gamma, reduction)
        (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    return loss.detach(), gradient


def _kept(tensor: Tensor) -> Tensor:
    return tensor


def native(
    _original: None, problem: FocalLossProblem, x: Tensor, targets: Tensor
) -> tuple[Tensor, ...]:
    """Return the loss, and its gradient if the problem has one, by a native kernel in float32."""
    _, alpha, gamma, reduction, *_ = problem
    wide, count = _float32(x), x.numel()
    gradient = _gradients.empty_like(wide)
    loss: Any
    # NumPy's arrays reach the kernel in 6 us, tensors in 11: PyTorch's `__dlpack__` is Python.
    loss, _ = kernels.focal_loss(
        wide.numpy(),
        _float32(targets).numpy(),
        alpha=alpha,
        gamma=gamma,
        scale=1 / count if reduction == "mean" else 1.0,
        reduction="none" if reduction == "none" else "sum",
        gradient=gradient.numpy(),
        threads=min(problem.threads, -(-count // _PART)),
    )
    loss = torch.from_numpy(loss) if reduction == "none" else wide.new_full((), loss)
    if x.dtype is not torch.float32:
        gradient = gradient.to(x.dtype)
        loss = loss.to(x.dtype) if reduction == "none" else loss
    return (loss, gradient) if problem.gradient else (loss,)


def _float32(x: Tensor) -> Tensor:
    return x if x.dtype is torch.float32 else x.to(torch.float32)


class FocalLoss(RoundingOperation[FocalLossProblem]):
    """Loss and gradient. The operands: logits and targets."""

    name = "focal loss"
    operators = ()
    rows = (
        Row("as is", as_is),
        Row("native", native, dtypes=(FLOAT32, BFLOAT16), accuracy="float32"),
    )

    def call(
        self,
        _level: Accuracy,
        x: Tensor,
        targets: Tensor,
        alpha: float,
        gamma: float,
        reduction: str,
        gradient: bool,
    ) -> Call | None:
        """Return the problem and the operands; None if PyTorch answers them."""
        if x.dtype not in self.dtypes or not (is_plain_tensor(x) and is_plain_tensor(targets)):
            return None
        if not 0 <= gamma < inf or x.numel() == 0:
            return None
        dtypes = name_of(x.dtype), name_of(targets.dtype)
        settings = float(alpha), float(gamma), reduction, gradient, torch.get_num_threads()
        most = min(1 << (x.numel() - 1).bit_length(), COMPARED)
        problem = FocalLossProblem(most, *settings, *dtypes)
        return Call(problem, (x.detach().contiguous(), targets.detach().contiguous()))

    def replaced(self, args: tuple[Any, ...], tensors: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """Return the call with other logits: no random numbers are targets."""
        return args[0], tensors[0], args[2]

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return the loss of a detector: one target in a hundred is 1."""
        shape = 1, 30000, 91
        x, targets = random(*shape) - 4.0, (random(*shape, seed=1) > 2.33).float()
        return {"x".join(map(str, shape)): (x, targets, 0.25, 2.0, "sum", True)}

    def parts(self, call: Call, _expected: Sequence[Tensor | None]) -> Sequence[Part]:
        """Return the bounds of loss and gradient. Their terms are positive: they are the scale.

        The kernel's exponential of -|x| is within 3e-7 and one rounding, and enters gamma + 2
        factors. Its logarithm is within 2e-7. Some 24 operations round. A power by logarithms
        multiplies the error of the logarithm by gamma; beyond 110, the power underflows. A sum adds
        at most 64 numbers in a row.
        """
        gamma, reduction = call.problem.gamma, call.problem.reduction
        steep = gamma * max(1.0, min(peak(call.operands[0]), 110.0))
        roundings = (gamma + 2) * 7.1 + 3.4 + 24 + 2 * steep
        found = [units(roundings + (0.0 if reduction == "none" else 64.0)), units(roundings)]
        return [Part(Scale(0.0, 0.0), one, one) for one in found[: 1 + call.problem.gradient]]
