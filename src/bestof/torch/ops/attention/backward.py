"""The backward pass of attention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bestof.kernels.attention_backward import AttentionBackwardPlan
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
from bestof.torch.ops.attention.forward import AttentionForward
from bestof.torch.ops.attention.problem import AttentionProblem
from bestof.torch.ops.attention.recognition import fits, fits_backward
from bestof.torch.ops.comparison import Finding
from bestof.torch.ops.native_operands import address
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.row import Row

_ROUNDINGS = 32.0  # between a score and a result; two sums are subtracted


class AttentionBackward(Attention):
    """Returns the gradients of q, k and v."""

    name = "attention_backward"
    operator = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    rule = "attention backward"

    def keys(self, operands: Operands) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v."""
        _, q, k, v, _, _ = operands.tensors
        return q, k, v

    def fits(self, operands: Operands) -> bool:
        """Return whether the native kernel computes this, and PyTorch accepts it."""
        gradient, q, k, v, out, logsumexp = operands.tensors
        return fits(q, k, v, operands.mask) and fits_backward(gradient, q, out, logsumexp)

    def results(self, operands: Operands) -> Tensors:
        """Return new tensors: gradients token after token, whatever the layout of the operands."""
        return tuple(
            torch.empty(
                (x.shape[0], x.shape[2], x.shape[1], x.shape[3]), dtype=x.dtype, device="cpu"
            ).transpose(1, 2)
            for x in self.keys(operands)
        )

    def narrowed(self, results: Tensors, operands: Operands) -> Tensors:
        """Return the gradients in the type of the operands."""
        return tuple(one.to(operands.tensors[0].dtype) for one in results)

    def plan(self, problem: AttentionProblem, operands: Operands, results: Tensors) -> NativePlan:
        """Return a plan for all operands and results that look like these."""
        plan = made_plan(AttentionBackwardPlan, problem, operands, _arrays(operands, results))
        return NativePlan(plan, lambda *given: plan.run([*map(address, _arrays(*given))]))

    def apart(self, operands: Operands) -> Tensor:
        """Return how far results by the same kernel may be apart: some roundings."""
        gradient, q, k, v, _, _ = operands.tensors
        largest = torch.maximum(q.abs().max(), k.abs().max())
        terms = q.shape[2] * q.shape[1] / k.shape[1]  # of a sum over the queries of shared heads
        size = 1.0 + q.shape[3] * v.abs().max().float() * largest
        return torch.finfo(q.dtype).eps * 8 * terms * gradient.abs().max().float() * size

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return the gradients of the examples of the forward pass."""
        forward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        found = {}
        for name, (q, k, v, *others) in AttentionForward().examples().items():
            out, logsumexp = forward(q, k, v)
            batch, heads, tokens, size = q.shape
            gradient = example(batch, heads, tokens, size, 3)
            found[name] = (gradient, q, k, v, out, logsumexp, *others)
        return found

    def compare(
        self,
        _row: Row[AttentionProblem],
        original: Kernel,
        args: tuple[Any, ...],
        expected: Tensors,
        got: Tensors,
    ) -> Finding:
        """Return which gradients are wrong.

        Where values are alike, the difference of the two sums cancels, but its rounding does not.
        So errors are held against the gradients without the sum that is subtracted.
        """
        problem, given = args[0], Operands.of(args[1:])
        gradient, q, k, v, out, logsumexp = given.tensors
        by_pytorch = self.rows[0].function
        without = (gradient, q, k, v, torch.zeros_like(out), logsumexp, given.mask, given.scale)
        uncancelled = by_pytorch(original, problem, *without)
        terms = Terms(q, k, v, scale_of(problem, given), _ROUNDINGS, uncancelled)
        in_float64 = partial(self.in_float64, original, problem, given)
        return compare_results(problem, terms, expected, got, in_float64)

    def replaced(self, args: tuple[Any, ...], tensors: Sequence[Tensor | None]) -> tuple[Any, ...]:
        """Return the call with a random gradient only.

        The other tensors are results of the forward pass, which random numbers are not.
        """
        return (args[0], tensors[0], *args[2:])


def _arrays(operands: Operands, results: Tensors) -> Sequence[Tensor | None]:
    return *operands.tensors, operands.mask, *results
