"""Compares results of attention with PyTorch's own.

Both kernels err in their scores by some roundings of the largest score, which becomes a relative
error of the probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from bestof.torch.ops.attention.problem import AttentionProblem
from bestof.torch.ops.bound import ErrorBound, float32_inside
from bestof.torch.ops.comparison import Finding, Scale, Side, compare, energies, root
from bestof.torch.ops.distance import finite, rms

_EPS = float(torch.finfo(torch.float32).eps)
# Of shorter types: probabilities, their gradients and results are rounded.
_ROUNDINGS = 4.0
_SINGLE = 10.0  # the largest error over the rms, as of all kernels


class Terms(NamedTuple):
    """What decides how large errors may be.

    roundings: between a score and a result. uncancelled: the results without the sums that are
    subtracted from them; None if nothing is.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    roundings: float
    uncancelled: Sequence[Tensor] | None = None


def compare_results(
    problem: AttentionProblem,
    terms: Terms,
    expected: Sequence[Tensor],
    got: Sequence[Tensor],
    in_float64: Callable[[], Sequence[Tensor]],
) -> Finding:
    """Return which results are wrong: of PyTorch's own kernel, and of another one."""
    v, bound = terms.v, _bound(terms)
    right: list[Sequence[Tensor]] = []

    def result_in_float64(place: int) -> Tensor:
        if not right:
            right.append(in_float64())
        return right[0][place]

    # Of random values, a mean over all keys has this size.
    mean = rms(finite(v)) / sqrt(problem.keys)
    for place, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        is_logsumexp = mine.dtype is not v.dtype or mine.dim() == 3
        least = log(problem.keys) + 1.0 if is_logsumexp else mean
        if terms.uncancelled is not None:
            least = rms(finite(terms.uncancelled[place]))
        found = compare(
            Side(mine, bound),
            Side(theirs, bound),
            Scale(least, _SINGLE * least),
            lambda place=place: result_in_float64(place),  # type: ignore[misc]  # its default
        )
        if found.wrong is not None or found.reference_wrong is not None or not found.tells:
            return found
    return Finding()


def _bound(terms: Terms) -> ErrorBound:
    q, k = terms.q, terms.k
    score = abs(terms.scale) * root(energies(q, (-1,)).max() * energies(k, (-1,)).max())
    error = terms.roundings * _EPS * (1.0 + score)
    narrow = float(torch.finfo(q.dtype).eps)
    if narrow > _EPS:
        error += _ROUNDINGS * narrow / 2
    else:
        error += float32_inside().rms * (1.0 + score)
    return ErrorBound(error, _SINGLE * error)
