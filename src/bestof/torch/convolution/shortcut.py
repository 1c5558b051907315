"""Passes for which a choice was made, which need not ask the selectors each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, repeat
from typing import NamedTuple

from torch import Tensor

from bestof.torch.convolution.problem import ConvProblem, LayerProblem
from bestof.torch.shim import ASKED_EVERY, Count, NativeConvolution


class Shortcut(NamedTuple):
    """A pass that PyTorch's own kernel computes, without asking the selectors, whenever `turns` gives true; `counts`
    are to be told of it then. `chosen`: whether it ever does. `met`: what was looked up. `native`: the kernel of ours
    that was chosen, where it can be called without Python; `by_python` does the same (input, weight, bias, problem)."""

    problem: ConvProblem
    turns: Iterator[bool]
    counts: list[Count]
    chosen: bool
    met: ConvProblem | LayerProblem
    native: NativeConvolution | None
    by_python: Callable[..., Tensor] | None

    @classmethod
    def of(
        cls,
        problem: ConvProblem,
        counts: list[Count],
        chosen: bool,
        met: ConvProblem | LayerProblem,
        native: NativeConvolution | None = None,
        by_python: Callable[..., Tensor] | None = None,
    ) -> Shortcut:
        """The selectors are asked once in so many calls all the same: they go on seeing how long it takes."""
        turns = cycle((*repeat(True, ASKED_EVERY - 1), False)) if chosen else repeat(False)
        return cls(problem, turns, counts, chosen, met, native, by_python)
