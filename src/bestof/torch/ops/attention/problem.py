"""One attention as a value: the problem of the selector of attention."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bestof.torch.ops.dtypes import name_of

Layout = Literal["heads", "tokens", "strided"]
"""How operands lie: head after head, token after token with its heads side by side, or else."""

Mask = Literal["none", "keys", "scores"]
"""Without a mask, with one that is equal for all queries, or with one of all scores."""


class AttentionProblem(NamedTuple):
    """One attention of tensors [batch, heads, tokens, size] on the CPU.

    k and v have `shared_heads` heads of `keys` tokens. The scale makes no difference.
    """

    batch: int
    heads: int
    shared_heads: int
    queries: int
    keys: int
    size: int
    layouts: tuple[Layout, Layout, Layout]
    causal: bool
    mask: Mask
    dtype: str
    threads: int

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None
    ) -> AttentionProblem:
        """Return the problem of operands that fit."""
        batch, heads, queries, size = q.shape
        kind: Mask = "none"
        if mask is not None:
            kind = "keys" if mask.shape[-2] == 1 or mask.stride(-2) == 0 else "scores"
        return cls(
            batch,
            heads,
            k.shape[1],
            queries,
            k.shape[2],
            size,
            (layout_of(q), layout_of(k), layout_of(v)),
            causal,
            kind,
            name_of(q.dtype),
            torch.get_num_threads(),
        )

    def canonical(self) -> str:
        """Return the canonical text for the store. It contains all that distinguishes problems."""
        return f"{self} threads={self.threads}"

    def __str__(self) -> str:
        heads = f"h{self.heads}"
        if self.shared_heads != self.heads:
            heads += f"/{self.shared_heads}"
        words = [f"b{self.batch},{heads},q{self.queries},k{self.keys},d{self.size}"]
        if set(self.layouts) != {"heads"}:
            words.append("-".join(self.layouts))
        if self.causal:
            words.append("causal")
        if self.mask != "none":
            words.append(f"mask={self.mask}")
        if self.dtype != "float32":
            words.append(self.dtype)
        return " ".join(words)


def layout_of(x: Tensor) -> Layout:
    """Return how [batch, heads, tokens, size] lies, with or without gaps between tokens."""
    _, head, token, _ = x.stride()
    if token == x.shape[3]:
        return "heads"
    return "tokens" if head == x.shape[3] else "strided"
