"""Attention of bfloat16 and float16 by kernels of float32, in both passes."""

from __future__ import annotations

import pytest
import torch
from attention_case import ON, OneEach, attend, decisions, mask_of, operands
from torch import Tensor

import bestof.torch as integration
from bestof.selection import use_policy

NAMES = ["float32", "float32 native"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["none", "causal", "added", "narrow"])
@pytest.mark.parametrize("name", NAMES)
def test_results_and_gradients(name: str, kind: str, dtype: torch.dtype) -> None:
    """Results and what the backward pass reads are rounded once; the sums are float32."""
    unit = torch.finfo(dtype).eps / 2
    mask = mask_of("added" if kind == "narrow" else kind)
    mask = mask.to(dtype) if kind == "narrow" and mask is not None else mask
    queries = 33 if kind == "causal" else 20
    leaves = [x.to(dtype).requires_grad_() for x in operands(queries=queries)]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    upstream = torch.randn(leaves[0].shape, generator=torch.Generator().manual_seed(5)).to(dtype)

    def run(given: list[Tensor], added: Tensor | None) -> list[Tensor]:
        out = attend(*given, attn_mask=added, is_causal=kind == "causal")
        gradients = torch.autograd.grad(out, given, upstream.to(out.dtype))
        return [out.detach(), *gradients]

    exact = run(wide, None if mask is None else mask.double())
    own = run(leaves, mask)
    use_policy(OneEach(name, name))
    integration.enable(ON)
    for _ in range(4):
        got = run(leaves, mask)
    assert decisions() == [name, name]
    for mine, theirs, right in zip(got, own, exact, strict=True):
        assert mine.dtype is theirs.dtype
        assert mine.stride() == theirs.stride()
        error = torch.linalg.vector_norm(mine.double() - right)
        assert error <= 4 * unit * torch.linalg.vector_norm(right)
