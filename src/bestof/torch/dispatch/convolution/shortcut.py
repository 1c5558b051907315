"""How a pass is computed once the selectors have decided, without asking them at each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, repeat
from typing import NamedTuple, TypeAlias

from bestof.torch.backends.shim import ASKED_EVERY, Count, Native
from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.problem import ConvProblem, LayerProblem

Met: TypeAlias = ConvProblem | LayerProblem
"""The problem of a forward pass: a convolution, or a layer if gradients are needed."""

Note: TypeAlias = Callable[[list[Count]], bool]
"""Leaves calls like the present one to PyTorch's own kernel, without Python. They raise these
counters. Returns False if Python is asked all the same."""


class Shortcut(NamedTuple):
    """How calls with one key are computed at present.

    problem: the problem of the pass.
    met: the problem for which the selectors are asked.
    chosen: whether PyTorch's own kernel was chosen.
    turns: whether that kernel answers the next call. The selectors are asked once in ASKED_EVERY
        calls, so that they see its time.
    counts: counters to raise at every such call; the first one is that of the pass.
    native: the chosen native kernel, if the shim can call it.
    row: the row of that kernel.
    is_part: whether a backward pass computes other gradients than those of `met`.
    is_open: whether something that answers these calls is undecided.
    """

    problem: ConvProblem
    met: Met
    counts: list[Count]
    chosen: bool
    turns: Iterator[bool]
    native: Native | None = None
    row: Pass | None = None
    is_part: bool = False
    is_open: bool = False

    @classmethod
    def of(
        cls,
        problem: ConvProblem,
        met: Met,
        counts: list[Count],
        chosen: bool = False,
        native: Native | None = None,
        row: Pass | None = None,
    ) -> Shortcut:
        """Return the shortcut; its turns begin with PyTorch's own kernel if that was chosen."""
        turns = cycle((*repeat(True, ASKED_EVERY - 1), False)) if chosen else repeat(False)
        return cls(problem, met, counts, chosen, turns, native, row)
