"""SiLU: chooses between PyTorch's own kernel and a native one.

On a Zen 3 the native kernel takes 0.65 to 0.7 of PyTorch's time. For bfloat16 both take as long,
so PyTorch answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.ops.activation.activation import (
    LEAST,
    ActivationProblem,
    compiled,
    native,
    problem_of,
    scale_of,
)
from bestof.torch.ops.dtypes import FLOAT32
from bestof.torch.ops.examples import random
from bestof.torch.ops.operation import Call
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.rounding_operation import Part, RoundingOperation, units
from bestof.torch.ops.row import Row


def as_is(original: Kernel, _problem: ActivationProblem, x: Tensor) -> Tensor:
    """Return SiLU by PyTorch's own kernel."""
    return original(x)  # type: ignore[no-any-return]


class Silu(RoundingOperation[ActivationProblem]):
    """`aten::silu`. PyTorch answers `aten::silu_`: what overwrites its argument cannot be tried."""

    name = "silu"
    operator = "aten::silu"
    least = LEAST
    rows = (
        Row("as is", as_is),
        Row("native", native, dtypes=(FLOAT32,), accuracy="float32", compiled=compiled),
    )

    def call(self, level: Accuracy, x: Tensor) -> Call | None:
        """Return the problem and the argument of a call; None if PyTorch answers it."""
        return problem_of(level, "silu", self.dtypes, x)

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return a large one."""
        return {"1024 x 3072": (random(1024, 3072),)}

    def parts(self, call: Call, _expected: Sequence[Any]) -> Sequence[Part]:
        """Return the scale of results: they are at most the argument."""
        (x,) = call.operands
        assert x is not None
        return (Part(scale_of(x), units(5), units(5)),)
