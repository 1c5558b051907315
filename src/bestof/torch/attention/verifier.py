"""Compares results of attention with PyTorch's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log, sqrt
from typing import Any

import torch
from torch import Tensor

from bestof.torch.attention.attention_pass import AttentionPass, Operands, Tensors
from bestof.torch.comparison import Finding, Scale, Side, compare, energies, root
from bestof.torch.convolution.alternative import ErrorBound
from bestof.torch.distance import finite, rms
from bestof.torch.row_verifier import RowVerifier

_EPS = float(torch.finfo(torch.float32).eps)
# Roundings between a score and a result, for each pass. The backward pass subtracts two sums.
_FORWARD, _BACKWARD = 8.0, 32.0
# Of bfloat16: probabilities, their gradients and results are rounded.
_ROUNDINGS = 4.0
_SINGLE = 10.0  # the largest error over the rms, as of all kernels


class AttentionVerifier(RowVerifier):
    """Compares the results of one pass of attention; a call is (problem, look, operands).

    Both kernels err in their scores by some roundings of the largest score, which becomes a
    relative error of the probabilities.
    """

    def __init__(
        self, attention: AttentionPass, rows: Mapping[str, Callable[..., Tensors]]
    ) -> None:
        super().__init__(next(iter(rows)))
        self._pass = attention
        self._rows = rows

    def run(self, alternative: str, _stage: int, args: tuple[Any, ...]) -> Tensors:
        """Return what a row computes."""
        return tuple(self._rows[alternative](*args))

    def operands(self, _stage: int, args: tuple[Any, ...]) -> Sequence[Tensor | None]:
        """Return the tensors of the pass, and the mask."""
        return (*args[2].tensors, args[2].mask)

    def replaced(
        self, _stage: int, args: tuple[Any, ...], operands: Sequence[Tensor | None]
    ) -> tuple[Any, ...]:
        """Return the call with other tensors, but with its mask.

        The backward pass reads results of the forward pass, which random numbers are not. So it is
        given a random gradient only.
        """
        problem, look, given = args
        if not self._pass.is_backward:
            tensors = tuple(one for one in operands[:-1] if one is not None)
        else:
            assert operands[0] is not None
            tensors = (operands[0], *given.tensors[1:])
        return problem, look, given._replace(tensors=tensors)

    def compare(
        self, _alternative: str, _stage: int, args: tuple[Any, ...], expected: Any, got: Any
    ) -> Finding:
        """Return which results are wrong."""
        problem, look, given = args
        _, _, v = self._pass.keys(given)
        bound = self._bound(problem.size, given)
        right: list[Tensors] = []

        def in_float64(place: int) -> Tensor:
            if not right:
                wide = tuple(one.double() for one in given.tensors)
                mask = None if given.mask is None else given.mask.double()
                right.append(
                    self.run(self._first, 0, (problem, look, Operands(wide, mask, given.scale)))
                )
            return right[0][place]

        # Of random values, a mean over all keys has this size.
        mean = rms(finite(v)) / sqrt(problem.keys)
        terms = self._uncancelled(args) if self._pass.is_backward else None
        for place, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
            is_logsumexp = mine.dtype is not v.dtype or mine.dim() == 3
            size = log(problem.keys) + 1.0 if is_logsumexp else mean
            least = size if terms is None else rms(finite(terms[place]))
            found = compare(
                Side(mine, bound),
                Side(theirs, bound),
                Scale(least, _SINGLE * least),
                lambda place=place: in_float64(place),  # type: ignore[misc]  # its default
            )
            if found.wrong is not None or found.reference_wrong is not None or not found.tells:
                return found
        return Finding()

    def _uncancelled(self, args: tuple[Any, ...]) -> Tensors:
        """Return the gradients without the sums that the backward pass subtracts.

        Where values are alike, the difference cancels, but its rounding does not.
        """
        problem, look, given = args
        gradient, q, k, v, out, logsumexp = given.tensors
        tensors = (gradient, q, k, v, torch.zeros_like(out), logsumexp)
        return self.run(self._first, 0, (problem, look, given._replace(tensors=tensors)))

    def _bound(self, size: int, given: Operands) -> ErrorBound:
        q, k, _ = self._pass.keys(given)
        scale = size**-0.5 if given.scale is None else abs(given.scale)
        score = scale * root(energies(q, (-1,)).max() * energies(k, (-1,)).max())
        roundings = _BACKWARD if self._pass.is_backward else _FORWARD
        error = roundings * _EPS * (1.0 + score)
        if q.dtype is torch.bfloat16:
            error += _ROUNDINGS * 2**-8
        return ErrorBound(error, _SINGLE * error)
