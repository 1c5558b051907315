"""Rotary position embedding: chooses between PyTorch's operators and a native kernel.

PyTorch has no operator for it. Plans find it among the operators of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.kernels import RotaryPlan
from bestof.torch.backends.shim import Native
from bestof.torch.ops.comparison import Scale
from bestof.torch.ops.distance import peak, size_of
from bestof.torch.ops.dtypes import BFLOAT16, FLOAT32, name_of
from bestof.torch.ops.examples import random
from bestof.torch.ops.native_operands import address, compiled_by
from bestof.torch.ops.operation import Call
from bestof.torch.ops.rounding_operation import Part, RoundingOperation, units
from bestof.torch.ops.row import Row

_ROUNDINGS = 3.0  # of two products and their sum


class RotaryProblem(NamedTuple):
    """An embedding of [batch, heads, tokens, size]. Strides and the shapes of tables are free."""

    shape: tuple[int, ...]
    threads: int
    dtype: str

    def canonical(self) -> str:
        """Return the canonical text for the store. It contains all that distinguishes problems."""
        return f"{self} threads={self.threads}"

    def __str__(self) -> str:
        words = ["x".join(map(str, self.shape))]
        words += [self.dtype] * (self.dtype != FLOAT32.operands)
        return " ".join(words)


def as_is(_original: None, _problem: RotaryProblem, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the embedded tokens by PyTorch's operators."""
    first, second = x.chunk(2, -1)
    return (x * cos + torch.cat((-second, first), -1) * sin).contiguous()


def native(_original: None, problem: RotaryProblem, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the embedded tokens by a native kernel."""
    out = torch.empty(problem.shape, dtype=x.dtype, device="cpu")
    _plan(problem, x, cos, sin).run(address(x), address(cos), address(sin), address(out))
    return out


def compiled(problem: RotaryProblem, *operands: Tensor) -> Native:
    """Return the kernel of `native` for operands with the strides of these."""
    runnable = _plan(problem, *operands).runnable()
    return compiled_by(runnable, len(operands), problem.shape, like=operands[0])


def _plan(problem: RotaryProblem, *operands: Tensor) -> RotaryPlan:
    strides = [one.stride() for one in operands]
    return RotaryPlan([one.shape for one in operands], strides, dtype=problem.dtype)


class Rotary(RoundingOperation[RotaryProblem]):
    """x cos + turned(x) sin, where turned(x) is (-second half, first half) of the last axis.

    The operands: x [batch, heads, tokens, size]; cos and sin, which broadcast to x and have all
    numbers of a token. The last axis of each has stride 1.
    """

    name = "rotary"
    operators = ()
    rows = (
        Row("as is", as_is),
        Row("native", native, dtypes=(FLOAT32, BFLOAT16), accuracy="float32", compiled=compiled),
    )

    def call(self, level: Accuracy, x: Tensor, cos: Tensor, sin: Tensor) -> Call | None:
        """Return the problem and the operands; None if PyTorch answers them."""
        operands = x, cos, sin
        if level == "exact" or not fits(*(tuple(one.shape) for one in operands)):
            return None
        if x.dtype not in self.dtypes or any(
            one.dtype is not x.dtype or one.stride(-1) != 1 for one in operands
        ):
            return None
        problem = RotaryProblem(tuple(x.shape), torch.get_num_threads(), name_of(x.dtype))
        return Call(problem, operands)

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return the queries of a Llama, and of one token that it generates."""
        return {
            f"{heads} heads of 64, {tokens} tokens": (
                random(1, tokens, heads, 64).transpose(1, 2),
                random(tokens, 64, seed=1),
                random(tokens, 64, seed=2),
            )
            for heads, tokens in ((12, 1024), (32, 1))
        }

    def parts(self, call: Call, _expected: Sequence[Tensor | None]) -> Sequence[Part]:
        """Return the bounds: the native kernel rounds in float32, PyTorch in the operands' type."""
        x, cos, sin = call.operands
        numbers, steep = size_of(x), peak(cos) + peak(sin)
        wide = torch.finfo(x.dtype).eps / torch.finfo(torch.float32).eps
        scale = Scale(numbers.rms * steep, numbers.peak * steep)
        return (Part(scale, units(_ROUNDINGS * max(1.0, wide)), units(_ROUNDINGS)),)


def fits(x: tuple[int, ...], *tables: tuple[int, ...]) -> bool:
    """Return whether the native kernel computes values of these shapes."""
    if len(x) != 4 or 0 in x or x[3] % 2:
        return False
    return all(
        1 <= len(one) <= 4
        and one[-1] == x[3]
        and all(extent in (1, of) for extent, of in zip(one[::-1], x[::-1], strict=False))
        for one in tables
    )
