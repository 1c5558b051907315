"""What GELU, SiLU and their gradients have in common."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestof.accuracy import DEFAULT_ACCURACY, Accuracy
from bestof.kernels import ActivationPlan
from bestof.torch.backends.shim import Native
from bestof.torch.ops.comparison import Scale
from bestof.torch.ops.distance import size_of
from bestof.torch.ops.dtypes import name_of
from bestof.torch.ops.native_operands import (
    address,
    are_like,
    compiled_by,
    is_channels_last,
    is_large,
)
from bestof.torch.ops.operation import Call

LEAST = 2**18
"""Numbers for each thread. PyTorch takes 0.2 to 0.4 milliseconds on a Zen 3."""

LEAST_TANH = 2**16
"""The same for GELU by tanh, where PyTorch takes four times as long."""


class ActivationProblem(NamedTuple):
    """An activation of a dense tensor, or its gradient."""

    shape: tuple[int, ...]
    activation: str
    dtype: str
    channels_last: bool
    threads: int
    accuracy: Accuracy

    def canonical(self) -> str:
        """Return the canonical text for the store. It contains all that distinguishes problems."""
        return f"{self} threads={self.threads}"

    def __str__(self) -> str:
        words = ["x".join(map(str, self.shape)), self.activation]
        words += [self.dtype] * (self.dtype != "float32")
        words += ["channels_last"] * self.channels_last
        words += [self.accuracy] * (self.accuracy != DEFAULT_ACCURACY)
        return " ".join(words)


def problem_of(
    level: Accuracy, activation: str, dtypes: Collection[torch.dtype], *tensors: Tensor
) -> Call | None:
    """Return the call for tensors that are dense in the same order; None if PyTorch answers it."""
    x = tensors[0]
    least = LEAST_TANH if activation == "gelu_tanh" else LEAST
    if level == "exact" or x.dtype not in dtypes or not is_large(x, least):
        return None
    channels_last = is_channels_last(x)
    for one in tensors[1:]:
        if one.shape != x.shape or not are_like(x, one):
            return None
    for one in tensors:
        if not (is_channels_last(one) if channels_last else one.is_contiguous()):
            return None
    problem = ActivationProblem(
        tuple(x.shape),
        activation,
        name_of(x.dtype),
        channels_last,
        torch.get_num_threads(),
        level,
    )
    return Call(problem, tensors)


def result_of(problem: ActivationProblem, like: Tensor) -> Tensor:
    """Return a new tensor with the strides of PyTorch's result."""
    order = torch.channels_last if problem.channels_last else torch.contiguous_format
    return torch.empty(problem.shape, dtype=like.dtype, device="cpu", memory_format=order)


def native(_original: Any, problem: ActivationProblem, x: Tensor) -> Tensor:
    """Return the activation by a native kernel."""
    out = result_of(problem, x)
    plan = ActivationPlan(out.numel(), problem.activation, dtype=problem.dtype)
    plan.run(address(x), address(out))
    return out


def native_gradient(
    _original: Any, problem: ActivationProblem, gradient: Tensor, x: Tensor
) -> Tensor:
    """Return the gradient of the argument by a native kernel."""
    out = result_of(problem, x)
    plan = ActivationPlan(out.numel(), problem.activation, dtype=problem.dtype)
    plan.run_backward(address(gradient), address(x), address(out))
    return out


def compiled(problem: ActivationProblem, x: Tensor) -> Native:
    """Return the kernel of `native` for settled calls."""
    return _compiled(problem, x, 1)


def compiled_gradient(problem: ActivationProblem, _gradient: Tensor, x: Tensor) -> Native:
    """Return the kernel of `native_gradient` for settled calls."""
    return _compiled(problem, x, 2)


def _compiled(problem: ActivationProblem, x: Tensor, operands: int) -> Native:
    plan = ActivationPlan(x.numel(), problem.activation, dtype=problem.dtype)
    runnable = plan.runnable(backward=operands == 2)
    last = int(problem.channels_last)
    return compiled_by(runnable, operands, problem.shape, like=x, channels_last=last)


def scale_of(values: Tensor) -> Scale:
    """Return the size of values, to which errors are relative."""
    found = size_of(values)
    return Scale(found.rms, found.peak)
