"""Compares results by a random combination of their parts, in place of PyTorch's whole result."""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

LEAST = 4
"""Parts from which on a combination is worth it. Of fewer, PyTorch's whole result is computed."""

# Its own, so that the random numbers of the program are left alone.
_NUMBERS = torch.Generator().manual_seed(0)


class Combination(NamedTuple):
    """A smaller call, whose result is a combination of the parts of the result of a call.

    The parts are images, rows or filters. Each is multiplied by a random number, and they are
    summed. Linear operations compute the same from a combination of an operand, at the cost of one
    part. So PyTorch's own kernel checks all elements of a result without computing it again. This
    is the method of Freivalds for matrix products.

    The numbers have magnitudes of 0.5 to 1.5 and any sign: a wrong element is never hidden by its
    number, and two of them cancel with a probability of about 0.

    args: the problem and the operands of the smaller call. numbers: one for each part.
    """

    args: tuple[Any, ...]
    numbers: Tensor

    def of(self, result: Tensor) -> Tensor:
        """Return the combination of a result of the whole call."""
        return combined(result, self.numbers)


def numbers_for(parts: int) -> Tensor:
    """Return a random number for each part.

    Their sum is not near 0, so that what all parts have in common does not cancel.
    """
    numbers = torch.empty(parts, dtype=torch.float32, device="cpu")
    while True:
        numbers.uniform_(-1.0, 1.0, generator=_NUMBERS)
        found = torch.where(numbers < 0.0, numbers - 0.5, numbers + 0.5)
        if abs(float(found.sum())) >= 0.5 * sqrt(parts):
            return found


def combined(values: Tensor, numbers: Tensor) -> Tensor:
    """Return the sum over the first axis of values times numbers, with a first axis of one.

    It lies in memory as the values do. `mv` reads these once, and is no product that bestof tunes:
    64 images of 64 x 32 x 32 numbers take 0.7 ms on one thread of a Sapphire Rapids Xeon.
    """
    order = sorted(range(1, values.dim()), key=values.stride, reverse=True)
    ordered = values.permute(0, *order)
    sums = torch.mv(ordered.reshape(len(values), -1).t(), numbers)
    places = [0, *(1 + order.index(axis) for axis in range(1, values.dim()))]
    return sums.reshape(1, *ordered.shape[1:]).permute(places)
