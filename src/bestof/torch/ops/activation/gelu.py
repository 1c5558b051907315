"""GELU: chooses between PyTorch's own kernel and a native one.

On a Zen 3 the native kernel takes 0.7 of PyTorch's time, and a quarter for the approximation by
tanh. For bfloat16 these are 0.75 to 0.85, and 0.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.ops.activation.activation import (
    LEAST_TANH,
    ActivationProblem,
    compiled,
    native,
    problem_of,
    scale_of,
)
from bestof.torch.ops.dtypes import BFLOAT16, FLOAT32
from bestof.torch.ops.examples import random
from bestof.torch.ops.operation import Call
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.rounding_operation import Part, RoundingOperation, units
from bestof.torch.ops.row import Row

ACTIVATIONS = {"none": "gelu", "tanh": "gelu_tanh"}
"""The names of the kernels for what PyTorch calls the approximation."""

APPROXIMATIONS = {name: approximation for approximation, name in ACTIVATIONS.items()}


def as_is(original: Kernel, problem: ActivationProblem, x: Tensor) -> Tensor:
    """Return GELU by PyTorch's own kernel."""
    return original(x, APPROXIMATIONS[problem.activation])  # type: ignore[no-any-return]


class Gelu(RoundingOperation[ActivationProblem]):
    """`aten::gelu`."""

    name = "gelu"
    operator = "aten::gelu"
    least = LEAST_TANH
    rows = (
        Row("as is", as_is),
        Row("native", native, dtypes=(BFLOAT16, FLOAT32), accuracy="float32", compiled=compiled),
    )

    def call(self, level: Accuracy, x: Tensor, approximate: str = "none") -> Call | None:
        """Return the problem and the argument of a call; None if PyTorch answers it."""
        activation = ACTIVATIONS.get(approximate)
        return None if activation is None else problem_of(level, activation, self.dtypes, x)

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return those of BERT-base, exact and by tanh."""
        x = random(1024, 3072)
        return {"1024 x 3072": (x,), "1024 x 3072 by tanh": (x, "tanh")}

    def parts(self, call: Call, _expected: Sequence[Any]) -> Sequence[Part]:
        """Return the scale of results: they are at most the argument.

        PyTorch adds 1 to a value near -1, and both have up to three roundings.
        """
        (x,) = call.operands
        assert x is not None
        return (Part(scale_of(x), units(6), units(5)),)
