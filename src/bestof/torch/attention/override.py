"""Puts the choice of attention into PyTorch's dispatcher, below autograd."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bestof.configuration import Configuration
from bestof.errors import NoAlternative
from bestof.kernels import attention
from bestof.selection import Alternative, BestOf, shared_policy
from bestof.torch.attention.problem import AttentionProblem
from bestof.torch.convolution.recognition import PLAIN
from bestof.torch.convolution.selectors import RACE
from bestof.torch.depends import DEPENDS
from bestof.torch.kept_kernels import keep_kernel
from bestof.torch.modes import are_modes_on, without_modes

Attended = tuple[Tensor, Tensor]
"""The results, and the logsumexp of each query, which the backward pass needs."""

_NAME = "aten::_scaled_dot_product_flash_attention_for_cpu"
# The least number of multiply-adds of one of both products that is chosen for. PyTorch computes
# smaller attention in less than 150 microseconds on one core of a Cascade Lake Xeon.
_LEAST = 2**21
_deterministic = torch._C._get_deterministic_algorithms
_tracing = torch._C._get_tracing_state


class AttentionOverride:
    """Answers `aten::_scaled_dot_product_flash_attention_for_cpu` while registered.

    `F.scaled_dot_product_attention` calls it on the CPU, unless it drops out, a mask requires a
    gradient, or sizes are odd. PyTorch's own backward pass takes what either alternative returns.

    PyTorch's own kernel answers calls that are small or invalid, that have another dtype than
    float32, or subclasses of Tensor, and all calls while results are to be exact or deterministic.
    """

    def __init__(self) -> None:
        call = torch.library.get_kernel(_NAME, "CPU").call_boxed
        self._original = partial(call, torch._C.DispatchKeySet(torch._C.DispatchKey.CPU))
        self._library: Any = None
        self.selector = BestOf(
            "attention",
            [
                Alternative("as is", self._as_is, DEPENDS),
                Alternative("native", _native, DEPENDS),
            ],
            lambda problem, *_: problem,
            policy=None if shared_policy() else RACE,
        )

    def configure(self, configuration: Configuration) -> None:
        """Put the override in, or take it out, as a configuration says."""
        wanted = configuration.attention and configuration.accuracy != "exact"
        (self.register if wanted else self.remove)()

    def register(self) -> None:
        """Put the override in. Does nothing if it is in."""
        if self._library is not None:
            return
        new: Any = torch.library.Library  # has no annotations
        library = new("aten", "IMPL")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch warns of every override
                library.impl(_NAME.removeprefix("aten::"), self._attend, "CPU", allow_override=True)
        except BaseException:
            library._destroy()
            raise
        self._library = library
        keep_kernel(_NAME, "CPU")

    def remove(self) -> None:
        """Put PyTorch's own kernel back. Does nothing if it is in."""
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Attended:
        if are_modes_on():
            again = partial(self._attend, attn_mask=attn_mask, scale=scale)
            return without_modes(again, query, key, value, dropout_p, is_causal)
        if (
            dropout_p != 0.0
            or not _is_plain(query, key, value)
            or _multiply_adds(query, key) < _LEAST
            or not _fit(query, key, value)
            or not (attn_mask is None or _is_mask(attn_mask, query, key))
            or not (scale is None or math.isfinite(scale))
            or _deterministic()
            or _tracing() is not None  # sizes are tensors there
        ):
            return self._original(  # type: ignore[no-any-return]
                query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
            )
        problem = AttentionProblem.of(query, key, value, is_causal, attn_mask)
        try:
            return self.selector(  # type: ignore[no-any-return]
                problem, query, key, value, attn_mask, scale
            )
        except NoAlternative:  # for example, memory is short; the program gets PyTorch's own error
            return self._as_is(problem, query, key, value, attn_mask, scale)

    def _as_is(
        self,
        problem: AttentionProblem,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scale: float | None,
    ) -> Attended:
        return self._original(  # type: ignore[no-any-return]
            q, k, v, 0.0, problem.causal, attn_mask=mask, scale=scale
        )


def _is_plain(*operands: Tensor) -> bool:
    return all(
        type(x) in PLAIN
        and x.dtype is torch.float32
        and x.layout is torch.strided
        and x.is_cpu
        and x.dim() == 4
        for x in operands
    )


def _multiply_adds(q: Tensor, k: Tensor) -> int:
    return q.numel() * k.shape[2]


def _fit(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return (
        k.shape == v.shape
        and q.shape[0] == k.shape[0]
        and q.shape[3] == k.shape[3]
        and k.shape[1] > 0
        and q.shape[1] % k.shape[1] == 0
        and (q.stride(3) == k.stride(3) == v.stride(3) == 1 or q.shape[3] == 1)
    )


def _is_mask(mask: Tensor, q: Tensor, k: Tensor) -> bool:
    """Return whether it is a mask that PyTorch takes for these scores."""
    if (
        type(mask) not in PLAIN
        or mask.dtype is not torch.float32
        or mask.layout is not torch.strided
        or not mask.is_cpu
        or mask.dim() not in (2, 4)
    ):
        return False
    scores = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])[-mask.dim() :]
    return all(extent in (1, of) for extent, of in zip(mask.shape, scores, strict=True))


def _native(
    problem: AttentionProblem,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float | None,
) -> Attended:
    """Attend by the native kernel, into tensors of the layouts that PyTorch returns."""
    out = torch.empty_like(q, device="cpu")
    sums = torch.empty((problem.batch, problem.queries, problem.heads), device="cpu").transpose(
        1, 2
    )
    attention(
        *(x.detach().numpy() for x in (q, k, v)),
        mask=None if mask is None else mask.detach().numpy(),
        causal=problem.causal,
        scale=scale,
        out=out.detach().numpy(),
        logsumexp=sums.numpy(),
        threads=problem.threads,
    )
    return out, sums
