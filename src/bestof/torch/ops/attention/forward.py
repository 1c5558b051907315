"""The forward pass of attention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bestof.kernels import AttentionPlan
from bestof.torch.ops.attention.attention import (
    Attention,
    NativePlan,
    Operands,
    Tensors,
    example,
    made_plan,
    scale_of,
)
from bestof.torch.ops.attention.comparison import Terms, compare_results
from bestof.torch.ops.attention.problem import AttentionProblem
from bestof.torch.ops.attention.recognition import fits
from bestof.torch.ops.comparison import Finding
from bestof.torch.ops.native_operands import address
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.row import Row

_ROUNDINGS = 8.0  # between a score and a result


class AttentionForward(Attention):
    """Returns the results, and the logsumexp of each query, which the backward pass reads."""

    name = "attention"
    operator = "aten::_scaled_dot_product_flash_attention_for_cpu"
    rule = "attention"

    def keys(self, operands: Operands) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v."""
        q, k, v = operands.tensors
        return q, k, v

    def fits(self, operands: Operands) -> bool:
        """Return whether the native kernel computes this, and PyTorch accepts it."""
        return fits(*self.keys(operands), operands.mask)

    def results(self, operands: Operands) -> Tensors:
        """Return new tensors of the layouts that PyTorch returns."""
        q = operands.tensors[0]
        batch, heads, queries, _ = q.shape
        logsumexp = torch.empty_strided(
            (batch, heads, queries),
            (queries * heads, 1, heads),
            dtype=torch.float32,
            device="cpu",
        )
        return torch.empty_like(q, device="cpu"), logsumexp

    def narrowed(self, results: Tensors, operands: Operands) -> Tensors:
        """Return the results in the type of the operands; the logsumexp stays float32."""
        out, logsumexp = results
        return out.to(operands.tensors[0].dtype), logsumexp

    def plan(self, problem: AttentionProblem, operands: Operands, results: Tensors) -> NativePlan:
        """Return a plan for all operands and results that look like these."""
        plan = made_plan(AttentionPlan, problem, operands, _arrays(operands, results))
        return NativePlan(plan, lambda *given: plan.run(*map(address, _arrays(*given))))

    def apart(self, operands: Operands) -> Tensor:
        """Return how far results by the same kernel may be apart: some roundings."""
        q, k, v = operands.tensors
        scores = q.shape[-1] * q.abs().max() * k.abs().max()
        return torch.finfo(q.dtype).eps * 8 * (1.0 + v.abs().max() + scores).float()

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return attention of BERT-base, and of a longer text."""
        return {
            f"{batch} x {heads} heads of {size}, {tokens} tokens": (
                *(example(batch, heads, tokens, size, seed) for seed in range(3)),
                0.0,
                False,
                None,
                None,
            )
            for batch, heads, tokens, size in ((8, 12, 128, 64), (1, 12, 1024, 64))
        }

    def compare(
        self,
        _row: Row[AttentionProblem],
        original: Kernel,
        args: tuple[Any, ...],
        expected: Tensors,
        got: Tensors,
    ) -> Finding:
        """Return which results are wrong."""
        problem, given = args[0], Operands.of(args[1:])
        q, k, v = self.keys(given)
        terms = Terms(q, k, v, scale_of(problem, given), _ROUNDINGS)
        in_float64 = partial(self.in_float64, original, problem, given)
        return compare_results(problem, terms, expected, got, in_float64)

    def replaced(self, args: tuple[Any, ...], tensors: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """Return the call with other tensors, but with its mask."""
        return (args[0], *tensors[:-1], *args[-2:])


def _arrays(operands: Operands, results: Tensors) -> Sequence[Tensor | None]:
    return *operands.tensors, results[0], operands.mask, results[1]
