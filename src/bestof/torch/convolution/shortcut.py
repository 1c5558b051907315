"""How a pass is computed once the selectors have decided, without asking them each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle, repeat
from typing import NamedTuple, TypeAlias

from torch import Tensor

from bestof.torch.convolution.problem import ConvProblem, LayerProblem
from bestof.torch.shim import ASKED_EVERY, Count, NativeConvolution

Met: TypeAlias = ConvProblem | LayerProblem
"""What a forward pass met: a convolution, or a layer if gradients are wanted."""


class Shortcut(NamedTuple):
    """How calls of one look are computed at present.

    problem: of the pass. met: what the selectors are asked for. chosen: whether PyTorch's own
    kernel was chosen. turns: whether that kernel answers the next call; the selectors are asked
    once in ASKED_EVERY calls, so that they see how long it takes. counts: to be raised by every
    such call; the first one is that of the pass.
    native: the native kernel that was chosen, if the shim can call it. by_python: the same from
    Python, (input, weight, bias, problem) -> output. is_part: whether a backward pass computes
    other gradients than those of `met`.
    """

    problem: ConvProblem
    met: Met
    counts: list[Count]
    chosen: bool
    turns: Iterator[bool]
    native: NativeConvolution | None = None
    by_python: Callable[..., Tensor] | None = None
    is_part: bool = False

    @classmethod
    def of(
        cls,
        problem: ConvProblem,
        met: Met,
        counts: list[Count],
        chosen: bool = False,
        native: NativeConvolution | None = None,
        by_python: Callable[..., Tensor] | None = None,
    ) -> Shortcut:
        """Return the shortcut; its turns begin with PyTorch's own kernel if that was chosen."""
        turns = cycle((*repeat(True, ASKED_EVERY - 1), False)) if chosen else repeat(False)
        return cls(problem, met, counts, chosen, turns, native, by_python)
