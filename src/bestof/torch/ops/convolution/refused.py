"""Counts the calls that rows have left to PyTorch's own kernel, because an element stands out."""

from __future__ import annotations

from bestof.torch.backends.shim import Count
from bestof.torch.ops.convolution.problem import ConvProblem

_MOST = 2048  # problems; a program with ever new shapes must not grow


class Refused:
    """Counts of one pass, by problem. Threads may raise them at once."""

    def __init__(self) -> None:
        self._counts: dict[ConvProblem, Count] = {}

    def count(self, problem: ConvProblem) -> None:
        """Add a call."""
        if problem in self._counts or len(self._counts) < _MOST:
            next(self._counts.setdefault(problem, Count()))

    def calls(self, problem: ConvProblem) -> int:
        """Return how many calls were counted."""
        count = self._counts.get(problem)
        return 0 if count is None else count.calls
