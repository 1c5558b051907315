"""Neighbours of a problem: convolutions of the same layer with another batch or image size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import log
from typing import Generic, TypeVar

from bestof.torch.ops.convolution.problem import ConvProblem

Problem = TypeVar("Problem", bound=Hashable)

# Sizes of one layer that are remembered. Detection networks have hundreds; the last ones matter.
_REMEMBERED = 64
_FAMILIES = 1024
# With so many times the pixels the costs of tiles, matrices and spectra change their ratio.
_PIXELS = 4.0


class Neighbourhood(Generic[Problem]):
    """Remembers problems, and returns those near another one, the nearest first.

    Two problems are near if they belong to one layer and their images differ at most fourfold in
    pixels. Batch size, bias and frozen weights may differ. `convolution` returns the convolution of
    a problem, `rest` what else must agree. A selector calls it with its lock held, so it needs no
    lock.
    """

    def __init__(
        self,
        convolution: Callable[[Problem], ConvProblem],
        rest: Callable[[Problem], Hashable] = lambda _: None,
    ) -> None:
        self._convolution = convolution
        self._rest = rest
        self._families: dict[Hashable, dict[Problem, None]] = {}

    def __call__(self, problem: Problem) -> Iterable[Problem]:
        """Return the remembered problems near `problem`, and remember it."""
        convolution = self._convolution(problem)
        family = (convolution.family, self._rest(problem))
        if len(self._families) >= _FAMILIES and family not in self._families:
            del self._families[next(iter(self._families))]
        members = self._families.setdefault(family, {})
        near = [
            other
            for other in members
            if other != problem and self._pixels(other, convolution) <= log(_PIXELS)
        ]
        near.sort(key=lambda other: self._distance(other, convolution))
        members[problem] = None
        if len(members) > _REMEMBERED:
            del members[next(iter(members))]
        return near

    def _pixels(self, other: Problem, convolution: ConvProblem) -> float:
        (_, _, h, w), (_, _, height, width) = (
            self._convolution(other).input_shape,
            convolution.input_shape,
        )
        return abs(log(h * w / (height * width)))

    def _distance(self, other: Problem, convolution: ConvProblem) -> tuple[float, float]:
        batch, other_batch = convolution.input_shape[0], self._convolution(other).input_shape[0]
        return self._pixels(other, convolution), abs(log(batch / other_batch))
