"""Copies between channels first and channels last: chooses between PyTorch and native kernels.

On one thread of a Sapphire Rapids, PyTorch takes 2.3 to 8.4 milliseconds for 1.6 million numbers
into channels first, and 0.9 to 1.5 into channels last. The native kernels take 0.6.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.kernels import transpose
from bestof.torch.ops.comparison import Finding
from bestof.torch.ops.dtypes import FLOAT32
from bestof.torch.ops.examples import random
from bestof.torch.ops.memory import is_channels_first, is_channels_last, is_large
from bestof.torch.ops.operation import Call, Operation
from bestof.torch.ops.originals import Original
from bestof.torch.ops.row import Row

LEAST = 2**18
"""Numbers for each thread. PyTorch takes 0.15 milliseconds and more."""


# The numbers of c10/core/MemoryFormat.h.
_FIRST, _LAST = (0, torch.contiguous_format), (2, torch.channels_last)


class CloneProblem(NamedTuple):
    """A copy of dense images [N, C, H, W] into channels last, or else into channels first."""

    shape: tuple[int, ...]
    channels_last: bool
    threads: int

    def canonical(self) -> str:
        """Return the canonical text for the store. It contains all that distinguishes problems."""
        return f"{self} threads={self.threads}"

    def __str__(self) -> str:
        into = "last" if self.channels_last else "first"
        return f"{'x'.join(map(str, self.shape))} into channels {into}"


def _format(problem: CloneProblem) -> torch.memory_format:
    return torch.channels_last if problem.channels_last else torch.contiguous_format


def as_is(original: Original, problem: CloneProblem, x: Tensor) -> Tensor:
    """Return the copy by PyTorch's own kernel."""
    return original(x, _format(problem))  # type: ignore[no-any-return]


def native(_original: Original, problem: CloneProblem, x: Tensor) -> Tensor:
    """Return the copy by a native transposition."""
    out = torch.empty(problem.shape, dtype=x.dtype, memory_format=_format(problem), device="cpu")
    x, into = x.detach(), out
    if problem.channels_last:
        transpose(x, (0, 2, 3, 1), out=into.permute(0, 2, 3, 1))
    else:
        transpose(x.permute(0, 2, 3, 1), (0, 3, 1, 2), out=into)
    return out


class Clone(Operation[CloneProblem]):
    """`aten::clone`, which `contiguous` calls, of images in the other memory format."""

    name = "layout copy"
    operator = "aten::clone"
    least = LEAST
    rows = (Row("as is", as_is), Row("native", native, dtypes=(FLOAT32,)))

    def call(
        self, _level: Accuracy, x: Tensor, memory_format: torch.memory_format | int | None = None
    ) -> Call | None:
        """Return the problem and the images; None if PyTorch answers the call.

        C++ tells memory formats by their numbers.
        """
        last = memory_format in _LAST
        if x.dtype not in self.dtypes or not (last or memory_format in _FIRST):
            return None
        if x.is_neg() or not is_large(x, LEAST):
            return None
        if not (is_channels_first(x) if last else is_channels_last(x)):
            return None
        return Call(CloneProblem(tuple(x.shape), last, torch.get_num_threads()), (x,))

    def compare(
        self,
        _row: Row[CloneProblem],
        _original: Original,
        _args: tuple[Any, ...],
        expected: Tensor,
        got: Tensor,
    ) -> Finding:
        """Return whether a copy has other bits."""
        same = torch.equal(expected.view(torch.int32), got.view(torch.int32))
        return Finding(None if same else "a number is another than in the images")

    def tolerance(self, _row: Row[CloneProblem], _problem: CloneProblem, *_operands: Any) -> Tensor:
        """Return 0: copies have the same bits."""
        return torch.zeros(())

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return activations of a ResNet in both directions."""
        x = random(8, 64, 56, 56)
        last = x.contiguous(memory_format=torch.channels_last)
        return {
            "8 x 64 x 56 x 56 into channels last": (x, torch.channels_last),
            "8 x 64 x 56 x 56 into channels first": (last, torch.contiguous_format),
        }
