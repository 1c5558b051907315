"""The gradient of GELU: chooses between PyTorch's own kernel and a native one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.ops.activation.activation import (
    LEAST_TANH,
    ActivationProblem,
    compiled_gradient,
    native_gradient,
    problem_of,
    scale_of,
)
from bestof.torch.ops.activation.gelu import ACTIVATIONS, APPROXIMATIONS
from bestof.torch.ops.dtypes import BFLOAT16, FLOAT32
from bestof.torch.ops.examples import random
from bestof.torch.ops.operation import Call
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.rounding_operation import Part, RoundingOperation, units
from bestof.torch.ops.row import Row


def as_is(original: Kernel, problem: ActivationProblem, gradient: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of the argument by PyTorch's own kernel."""
    approximation = APPROXIMATIONS[problem.activation]
    return original(gradient, x, approximation)  # type: ignore[no-any-return]


class GeluBackward(RoundingOperation[ActivationProblem]):
    """`aten::gelu_backward`."""

    name = "gelu backward"
    operator = "aten::gelu_backward"
    least = LEAST_TANH
    rows = (
        Row("as is", as_is),
        Row(
            "native",
            native_gradient,
            dtypes=(BFLOAT16, FLOAT32),
            accuracy="float32",
            compiled=compiled_gradient,
        ),
    )

    def call(
        self, level: Accuracy, gradient: Tensor, x: Tensor, approximate: str = "none"
    ) -> Call | None:
        """Return the problem, the gradient and the argument; None if PyTorch answers the call."""
        activation = ACTIVATIONS.get(approximate)
        if activation is None:
            return None
        return problem_of(level, activation, self.dtypes, gradient, x)

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return those of BERT-base, exact and by tanh."""
        both = random(1024, 3072), random(1024, 3072, seed=1)
        return {"1024 x 3072": both, "1024 x 3072 by tanh": (*both, "tanh")}

    def parts(self, call: Call, _expected: Sequence[Any]) -> Sequence[Part]:
        """Return the scale of results: the derivative is at most 1.13, the sum of its terms 1.3.

        PyTorch subtracts the square of a tangent near 1 from 1, and multiplies by up to 9.
        """
        gradient = call.operands[0]
        assert gradient is not None
        return (Part(scale_of(gradient), units(24), units(14)),)
