"""The gradient of SiLU: chooses between PyTorch's own kernel and a native one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.ops.activation.activation import (
    LEAST,
    ActivationProblem,
    compiled_gradient,
    native_gradient,
    problem_of,
    scale_of,
)
from bestof.torch.ops.dtypes import FLOAT32
from bestof.torch.ops.examples import random
from bestof.torch.ops.operation import Call
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.rounding_operation import Part, RoundingOperation, units
from bestof.torch.ops.row import Row


def as_is(original: Kernel, _problem: ActivationProblem, gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of the argument by PyTorch's own kernel."""
    return original(gradient, x)  # type: ignore[no-any-return]


class SiluBackward(RoundingOperation[ActivationProblem]):
    """`aten::silu_backward`."""

    name = "silu backward"
    operator = "aten::silu_backward"
    least = LEAST
    rows = (
        Row("as is", as_is),
        Row(
            "native",
            native_gradient,
            dtypes=(FLOAT32,),
            accuracy="float32",
            compiled=compiled_gradient,
        ),
    )

    def call(self, level: Accuracy, gradient: Tensor, x: Tensor) -> Call | None:
        """Return the problem, the gradient and the argument; None if PyTorch answers the call."""
        return problem_of(level, "silu", self.dtypes, gradient, x)

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return a large one."""
        return {"1024 x 3072": (random(1024, 3072), random(1024, 3072, seed=1))}

    def parts(self, call: Call, _expected: Sequence[Any]) -> Sequence[Part]:
        """Return the scale of results: the derivative is at most 1.1.

        PyTorch subtracts a logistic function near 1 from 1, and multiplies by up to 17.
        """
        gradient = call.operands[0]
        assert gradient is not None
        return (Part(scale_of(gradient), units(24), units(11)),)
