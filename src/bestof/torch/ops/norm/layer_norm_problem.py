"""Layer norms of rows: what both passes have in common."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from bestof.accuracy import DEFAULT_ACCURACY, Accuracy
from bestof.kernels import LayerNormPlan
from bestof.torch.ops.native_operands import are_like, is_large

LEAST = 3 * 2**17
"""Numbers for each thread: PyTorch takes 0.22 milliseconds forward, and 0.4 backward, for BERT's
1,024 rows of 768 on two threads of a Zen 3."""


class LayerNormProblem(NamedTuple):
    """A layer norm of contiguous float32, or its gradients.

    scaled, shifted: whether there are a weight and a bias. mask: for the backward pass, whether the
    gradients of the input, the weight and the bias are wanted.
    """

    shape: tuple[int, ...]
    normalized: tuple[int, ...]
    eps: float
    scaled: bool
    shifted: bool
    mask: tuple[bool, ...]
    threads: int
    accuracy: Accuracy

    @property
    def size(self) -> int:
        """The numbers of a row."""
        return prod(self.normalized)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return prod(self.shape) // self.size

    def plan(self) -> LayerNormPlan:
        """Return the plan of the native kernels."""
        return LayerNormPlan(self.rows, self.size, eps=self.eps)

    def canonical(self) -> str:
        """Return the canonical text for the store. It contains all that distinguishes problems."""
        return f"{self} eps={self.eps} threads={self.threads}"

    def __str__(self) -> str:
        words = ["x".join(map(str, self.shape)), f"axes={len(self.normalized)}"]
        words += ["scale"] * self.scaled + ["shift"] * self.shifted
        if self.mask:
            words.append("gradients=" + "".join(str(int(one)) for one in self.mask))
        words += [self.accuracy] * (self.accuracy != DEFAULT_ACCURACY)
        return " ".join(words)


def is_plain_norm(
    level: Accuracy,
    dtypes: Collection[torch.dtype],
    x: Tensor,
    normalized: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
) -> bool:
    """Return whether bestof chooses for a norm: large, contiguous, and accepted by PyTorch."""
    if level == "exact" or x.dtype not in dtypes or not is_large(x, LEAST):
        return False
    shape, axes = tuple(normalized), len(normalized)
    if not axes or tuple(x.shape[-axes:]) != shape or not x.is_contiguous():
        return False
    for one in (weight, bias):
        if one is not None and not (
            are_like(x, one) and tuple(one.shape) == shape and one.is_contiguous()
        ):
            return False
    return True
