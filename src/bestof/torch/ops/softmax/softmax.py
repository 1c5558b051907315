"""Softmax: chooses between PyTorch's own kernel and a native one.

On a Zen 3 the native kernel takes 0.65 to 0.7 of PyTorch's time. PyTorch's
gradient of it is bound by memory: no row is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestof.accuracy import DEFAULT_ACCURACY, Accuracy
from bestof.kernels import SoftmaxPlan
from bestof.torch.backends.shim import Native
from bestof.torch.ops.bound import summation_bound
from bestof.torch.ops.comparison import Scale
from bestof.torch.ops.dtypes import FLOAT32
from bestof.torch.ops.examples import random
from bestof.torch.ops.native_operands import address, compiled_by, is_large
from bestof.torch.ops.operation import Call
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.rounding_operation import Part, RoundingOperation
from bestof.torch.ops.row import Row

LEAST = 2**18
"""Numbers for each thread. PyTorch takes 0.3 milliseconds on a Zen 3."""


class SoftmaxProblem(NamedTuple):
    """A softmax of a contiguous tensor along an axis."""

    shape: tuple[int, ...]
    axis: int
    threads: int
    accuracy: Accuracy

    def canonical(self) -> str:
        """Return the canonical text for the store. It contains all that distinguishes problems."""
        return f"{self} threads={self.threads}"

    def __str__(self) -> str:
        words = ["x".join(map(str, self.shape)), f"axis={self.axis}"]
        words += [self.accuracy] * (self.accuracy != DEFAULT_ACCURACY)
        return " ".join(words)


def as_is(original: Kernel, problem: SoftmaxProblem, x: Tensor) -> Tensor:
    """Return the softmax by PyTorch's own kernel."""
    return original(x, problem.axis, False)  # type: ignore[no-any-return]


def native(_original: Kernel, problem: SoftmaxProblem, x: Tensor) -> Tensor:
    """Return the softmax by a native kernel."""
    shape, axis = problem.shape, problem.axis
    out = torch.empty(shape, dtype=x.dtype, device="cpu")
    plan = SoftmaxPlan(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    plan.run(address(x), address(out))
    return out


def compiled(problem: SoftmaxProblem, x: Tensor) -> Native:
    """Return the kernel of `native` for settled calls."""
    shape, axis = problem.shape, problem.axis
    plan = SoftmaxPlan(prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    return compiled_by(plan.runnable(), 1, shape, like=x)


class Softmax(RoundingOperation[SoftmaxProblem]):
    """`aten::_softmax`."""

    name = "softmax"
    operator = "aten::_softmax"
    least = LEAST
    rows = (
        Row("as is", as_is),
        Row("native", native, dtypes=(FLOAT32,), accuracy="float32", compiled=compiled),
    )

    def call(self, level: Accuracy, x: Tensor, dim: int, half_to_float: bool) -> Call | None:
        """Return the problem and the argument of a call; None if PyTorch answers it."""
        if level == "exact" or x.dtype not in self.dtypes or not is_large(x, LEAST):
            return None
        axes = x.dim()
        if half_to_float or not x.is_contiguous() or not -axes <= dim < axes:
            return None
        problem = SoftmaxProblem(tuple(x.shape), dim % axes, torch.get_num_threads(), level)
        return Call(problem, (x,))

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return scores of attention, and channels of images."""
        return {
            "8 x 12 x 128 x 128, rows": (random(8, 12, 128, 128), -1, False),
            "8 x 19 x 128 x 128, channels": (random(8, 19, 128, 128), 1, False),
        }

    def parts(self, call: Call, _expected: Sequence[Any]) -> Sequence[Part]:
        """Return the bound of the sums. All terms are positive: the results are the scale."""
        bound = summation_bound(call.problem.shape[call.problem.axis], "float32")
        return (Part(Scale(0.0, 0.0), bound, bound),)
