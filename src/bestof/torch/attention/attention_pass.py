"""The two passes of attention: what each reads, and how each alternative computes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from bestof.kernels import AttentionPlan
from bestof.kernels.attention_backward import AttentionBackwardPlan
from bestof.torch.attention.problem import AttentionProblem
from bestof.torch.attention.recognition import fits, fits_backward

Tensors: TypeAlias = tuple[Tensor, ...]


class Operands(NamedTuple):
    """What one call reads; `scale` is None for the reciprocal root of the size of a head.

    The tensors of the forward pass are q, k and v. Those of the backward pass are the gradient of
    the results, q, k, v, the results, and their logsumexp.
    """

    tensors: Tensors
    mask: Tensor | None
    scale: float | None


class NativePlan(NamedTuple):
    """A plan of bestof.kernels, and how it runs on operands and results."""

    plan: AttentionPlan | AttentionBackwardPlan
    run: Callable[[Operands, Tensors], None]


class AttentionPass(ABC):
    """One pass of PyTorch's fused attention on the CPU, which is one operator of PyTorch."""

    operator: ClassVar[str]
    selector: ClassVar[str]
    is_backward: ClassVar[bool]

    @abstractmethod
    def keys(self, operands: Operands) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v."""

    @abstractmethod
    def fits(self, operands: Operands) -> bool:
        """Return whether the native kernel computes this, and PyTorch accepts it."""

    @abstractmethod
    def results(self, operands: Operands) -> Tensors:
        """Return new tensors of the layouts that PyTorch returns."""

    @abstractmethod
    def plan(self, problem: AttentionProblem, operands: Operands, results: Tensors) -> NativePlan:
        """Return a plan for all operands and results that look like these."""

    @abstractmethod
    def tolerance(self, operands: Operands) -> Tensor:
        """Return how far results by the same kernel may be apart: some roundings."""

    def by_pytorch(self, kernel: Callable[..., Any], operands: Operands, causal: bool) -> Tensors:
        """Return what PyTorch's own kernel returns."""
        tensors, mask, scale = operands
        results: Tensors = kernel(*tensors, 0.0, causal, attn_mask=mask, scale=scale)
        return results


class Forward(AttentionPass):
    """Returns the results, and the logsumexp of each query, which the backward pass reads."""

    operator = "aten::_scaled_dot_product_flash_attention_for_cpu"
    selector = "attention"
    is_backward = False

    def keys(self, operands: Operands) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = operands.tensors
        return q, k, v

    def fits(self, operands: Operands) -> bool:
        return fits(*self.keys(operands), operands.mask)

    def results(self, operands: Operands) -> Tensors:
        q = operands.tensors[0]
        batch, heads, queries, _ = q.shape
        logsumexp = torch.empty_strided(
            (batch, heads, queries),
            (queries * heads, 1, heads),
            dtype=torch.float32,
            device="cpu",
        )
        return torch.empty_like(q, device="cpu"), logsumexp

    def plan(self, problem: AttentionProblem, operands: Operands, results: Tensors) -> NativePlan:
        arrays = self._arrays(operands, results)
        plan = AttentionPlan(
            [None if x is None else x.shape for x in arrays],
            [None if x is None else x.stride() for x in arrays],
            causal=problem.causal,
            scale=_scale_of(problem, operands),
            dtype=problem.dtype,
            mask_dtype=_mask_dtype(operands),
            threads=problem.threads,
        )
        return NativePlan(plan, lambda *given: plan.run(*_addresses(self._arrays(*given))))

    def tolerance(self, operands: Operands) -> Tensor:
        q, k, v = operands.tensors
        scores = q.shape[-1] * q.abs().max() * k.abs().max()
        return torch.finfo(q.dtype).eps * 8 * (1.0 + v.abs().max() + scores).float()

    @staticmethod
    def _arrays(operands: Operands, results: Tensors) -> Sequence[Tensor | None]:
        return *operands.tensors, results[0], operands.mask, results[1]


class Backward(AttentionPass):
    """Returns the gradients of q, k and v."""

    operator = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
    selector = "attention_backward"
    is_backward = True

    def keys(self, operands: Operands) -> tuple[Tensor, Tensor, Tensor]:
        _, q, k, v, _, _ = operands.tensors
        return q, k, v

    def fits(self, operands: Operands) -> bool:
        gradient, q, k, v, out, logsumexp = operands.tensors
        return fits(q, k, v, operands.mask) and fits_backward(gradient, q, out, logsumexp)

    def results(self, operands: Operands) -> Tensors:
        # PyTorch returns gradients token after token, whatever the layout of the operands.
        return tuple(
            torch.empty(
                (x.shape[0], x.shape[2], x.shape[1], x.shape[3]), dtype=x.dtype, device="cpu"
            ).transpose(1, 2)
            for x in self.keys(operands)
        )

    def plan(self, problem: AttentionProblem, operands: Operands, results: Tensors) -> NativePlan:
        arrays = self._arrays(operands, results)
        plan = AttentionBackwardPlan(
            [None if x is None else x.shape for x in arrays],
            [None if x is None else x.stride() for x in arrays],
            causal=problem.causal,
            scale=_scale_of(problem, operands),
            dtype=problem.dtype,
            mask_dtype=_mask_dtype(operands),
            threads=problem.threads,
        )
        return NativePlan(plan, lambda *given: plan.run(_addresses(self._arrays(*given))))

    def tolerance(self, operands: Operands) -> Tensor:
        gradient, q, k, v, _, _ = operands.tensors
        largest = torch.maximum(q.abs().max(), k.abs().max())
        terms = q.shape[2] * q.shape[1] / k.shape[1]  # of a sum over the queries of shared heads
        size = 1.0 + q.shape[3] * v.abs().max().float() * largest
        return torch.finfo(q.dtype).eps * 8 * terms * gradient.abs().max().float() * size

    @staticmethod
    def _arrays(operands: Operands, results: Tensors) -> Sequence[Tensor | None]:
        return *operands.tensors, operands.mask, *results


def _scale_of(problem: AttentionProblem, operands: Operands) -> float:
    return problem.size**-0.5 if operands.scale is None else operands.scale


def _mask_dtype(operands: Operands) -> str:
    halves = operands.mask is not None and operands.mask.dtype is torch.bfloat16
    return "bfloat16" if halves else "float32"


def _addresses(arrays: Sequence[Tensor | None]) -> list[int]:
    return [0 if x is None else x.data_ptr() for x in arrays]
