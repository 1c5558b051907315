"""Convolutions that differ in the batch or the image only: what was found out for one holds for the next, mostly."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import log
from typing import Generic, TypeVar

from bestof.torch.convolution.problem import ConvProblem

Problem = TypeVar("Problem", bound=Hashable)

# Sizes of one layer that a program is still asked about; detection networks have hundreds, of which the last matter.
_REMEMBERED = 64
_FAMILIES = 1024
# Beyond so many times the pixels a tile, a matrix or a spectrum costs something else than before.
_PIXELS = 4.0


class Neighbourhood(Generic[Problem]):
    """Knows the problems that it was asked about, and gives those near another one, the nearest first.

    Near are problems of one layer, by any batch size, with images of a quarter to four times the pixels; the bias and
    whether weights are frozen make no difference. `convolution` gets the convolution of a problem, and `rest` what else
    must agree. Called with a selector's lock held, so its state needs none.
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
        """Those near `problem` of all that were asked about before."""
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
