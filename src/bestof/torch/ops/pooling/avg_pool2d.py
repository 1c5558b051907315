"""Average pooling: chooses among rows with the same sums.

As for maximum pooling, PyTorch adds single elements in channels first, and vectors of channels in
channels last, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.ops.dtypes import FLOAT32, FLOAT64, name_of
from bestof.torch.ops.examples import random
from bestof.torch.ops.memory_format import in_format
from bestof.torch.ops.operation import Call
from bestof.torch.ops.pooling.image import (
    is_chosen_for,
    pair,
    places,
    planes_of,
    rows_of,
    words,
)
from bestof.torch.ops.pooling.pooling import IMAGES, WINDOWS, Pooling
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.row import Row


class AvgPoolProblem(NamedTuple):
    """One average pooling of dense images in channels first, with PyTorch's arguments."""

    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    ceil_mode: bool
    count_padding: bool
    divisor: int | None
    dtype: str
    threads: int

    @classmethod
    def of(
        cls,
        image: Tensor,
        window: tuple[Sequence[int], Sequence[int], Sequence[int]],
        ceil_mode: bool,
        count_padding: bool,
        divisor: int | None,
    ) -> AvgPoolProblem:
        """Return the problem of images; the window has extents, steps and padding."""
        kernel, stride, padding = map(tuple, window)
        others = ceil_mode, count_padding, divisor
        dtype, threads = name_of(image.dtype), torch.get_num_threads()
        return cls(tuple(image.shape), kernel, stride, padding, *others, dtype, threads)

    def canonical(self) -> str:
        """Return the canonical text for the store. It contains all that distinguishes problems."""
        return f"{self} threads={self.threads}"

    def __str__(self) -> str:
        sizes = ("i", self.shape), ("k", self.kernel), ("s", self.stride), ("p", self.padding)
        others = (
            (self.dtype, self.dtype != "float32"),
            ("ceil", self.ceil_mode),
            ("inside", not self.count_padding),
            (f"divisor={self.divisor}", self.divisor is not None),
        )
        return " ".join([words(sizes), *(word for word, here in others if here)])


def as_is(original: Kernel, problem: AvgPoolProblem, image: Tensor) -> Tensor:
    """Pool by PyTorch's own kernel."""
    return original(image, *problem[1:7])  # type: ignore[no-any-return]


def channels_last(original: Kernel, problem: AvgPoolProblem, image: Tensor) -> Tensor:
    """Pool by PyTorch's own kernel, in channels last."""
    copy = image.contiguous(memory_format=torch.channels_last)
    return in_format(original(copy, *problem[1:7]), False)


def transposed(original: Kernel, problem: AvgPoolProblem, image: Tensor) -> Tensor:
    """Pool in channels last, with native transpositions before and after."""
    return planes_of(original(rows_of(image), *problem[1:7]))


class AvgPool2d(Pooling[AvgPoolProblem]):
    """`aten::avg_pool2d`."""

    name = "average pooling"
    operator = "aten::avg_pool2d"
    element = "an average"
    rows = (
        Row("as is", as_is),
        Row("channels last", channels_last, dtypes=(FLOAT32, FLOAT64)),
        Row(
            "native transposition",
            transposed,
            dtypes=(FLOAT32,),
        ),
    )

    def call(
        self,
        _level: Accuracy,
        image: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0, 0),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Call | None:
        """Return the problem and the image of a call; None if PyTorch answers it."""
        if not is_chosen_for(image, self.dtypes) or divisor_override == 0:
            return None
        problem = AvgPoolProblem.of(
            image,
            (kernel_size, stride, padding),
            ceil_mode,
            count_include_pad,
            divisor_override,
        )
        return Call(problem, (image,)) if pooled_shape(problem) else None

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return poolings of large images by two windows."""
        return {
            f"{name}, {text}": (random(*shape), *window, False, True, None)
            for name, shape in IMAGES.items()
            for text, window in WINDOWS.items()
        }


@lru_cache(maxsize=1024)  # each call from Python asks: 4 us, cached 0.6
def pooled_shape(problem: AvgPoolProblem) -> tuple[int, ...]:
    """Return the shape of the averages; () if PyTorch refuses the arguments, or if it is empty."""
    kernel, stride, padding = (pair(one) for one in problem[1:4])
    if problem.stride == ():  # the default
        stride = kernel
    if not (kernel and stride and padding) or 0 in problem.shape[1:]:
        return ()
    axes = zip(problem.shape[2:], kernel, stride, padding, strict=True)
    sizes = [places(*axis, 1, problem.ceil_mode) for axis in axes]
    return (*problem.shape[:2], *sizes) if all(sizes) else ()
