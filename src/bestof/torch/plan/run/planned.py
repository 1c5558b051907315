"""One planned set of input shapes."""

from __future__ import annotations

from typing import Any, NamedTuple

from bestof.torch.plan.run.program import Program


class Planned(NamedTuple):
    """A program, and the inputs that it is for.

    leaves: the flattened inputs, tensors without data. spec: how inputs nest. structure: how
    outputs nest. grad: whether it computes what the model does with gradients on, or off; None if
    it serves both.
    """

    leaves: list[Any]
    spec: Any
    program: Program
    structure: Any
    grad: bool | None = None
