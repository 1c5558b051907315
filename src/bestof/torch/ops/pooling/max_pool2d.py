"""Maximum pooling: chooses among rows with the same values and indices.

PyTorch compares single elements in channels first, and vectors of channels in channels last. For 8
images of 64 x 112 x 112 this takes 24.8 ms and 1.6 ms, with 2 threads of a Zen 4. So bestof also
tries pooling in channels last with transpositions. All rows give the same bits, including indices
and NaN.

PyTorch's own kernel answers calls for images that are small, not dense, or in channels last. It
also answers invalid calls, with its own error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.ops.comparison import Finding
from bestof.torch.ops.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, name_of
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

Pooled = tuple[Tensor, Tensor]
"""The maxima, and the index of each maximum in its plane."""


class MaxPoolProblem(NamedTuple):
    """One maximum pooling of dense images in channels first, with PyTorch's arguments."""

    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool
    dtype: str
    threads: int

    @classmethod
    def of(
        cls,
        image: Tensor,
        window: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]],
        ceil_mode: bool,
    ) -> MaxPoolProblem:
        """Return the problem of images; the window has extents, steps, padding and dilation."""
        kernel, stride, padding, dilation = map(tuple, window)
        dtype, threads = name_of(image.dtype), torch.get_num_threads()
        return cls(tuple(image.shape), kernel, stride, padding, dilation, ceil_mode, dtype, threads)

    def canonical(self) -> str:
        """Return the canonical text for the store. It contains all that distinguishes problems."""
        return f"{self} threads={self.threads}"

    def __str__(self) -> str:
        sizes = (
            ("i", self.shape),
            ("k", self.kernel),
            ("s", self.stride),
            ("p", self.padding),
            ("d", self.dilation),
        )
        text = words(sizes)
        if self.dtype != "float32":
            text += f" {self.dtype}"
        return f"{text} ceil" if self.ceil_mode else text


def as_is(original: Kernel, problem: MaxPoolProblem, image: Tensor) -> Pooled:
    """Pool by PyTorch's own kernel."""
    return original(image, *problem[1:6])  # type: ignore[no-any-return]


def channels_last(original: Kernel, problem: MaxPoolProblem, image: Tensor) -> Pooled:
    """Pool by PyTorch's own kernel, in channels last."""
    copy = image.contiguous(memory_format=torch.channels_last)
    maxima, indices = original(copy, *problem[1:6])
    return in_format(maxima, False), in_format(indices, False)


def transposed(original: Kernel, problem: MaxPoolProblem, image: Tensor) -> Pooled:
    """Pool in channels last, with native transpositions before and after.

    For 8 x 64 x 112 x 112, the transposition of the results takes 2 ms; PyTorch's takes 5.8 ms.
    """
    maxima, indices = original(rows_of(image), *problem[1:6])
    return planes_of(maxima), in_format(indices, False)


class MaxPool2d(Pooling[MaxPoolProblem]):
    """`aten::max_pool2d_with_indices`, which all maximum pooling calls."""

    name = "max pooling"
    operator = "aten::max_pool2d_with_indices"
    rows = (
        Row("as is", as_is, formerly=("bestof:MaxPoolOverride._as_is",)),
        Row(
            "channels last",
            channels_last,
            dtypes=(FLOAT32, FLOAT64, BFLOAT16, FLOAT16),
            formerly=("bestof:MaxPoolOverride._channels_last",),
        ),
        Row(
            "native transposition",
            transposed,
            dtypes=(FLOAT32,),
            formerly=("bestof:MaxPoolOverride._transposed",),
        ),
    )

    def call(
        self,
        _level: Accuracy,
        image: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0, 0),
        dilation: Sequence[int] = (1, 1),
        ceil_mode: bool = False,
    ) -> Call | None:
        """Return the problem and the image of a call; None if PyTorch answers it."""
        if not is_chosen_for(image, self.dtypes):
            return None
        problem = MaxPoolProblem.of(image, (kernel_size, stride, padding, dilation), ceil_mode)
        return Call(problem, (image,)) if pooled_shape(problem) else None

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return poolings of large images by two windows."""
        return {
            f"{name}, {text}": (random(*shape), *window, (1, 1), False)
            for name, shape in IMAGES.items()
            for text, window in WINDOWS.items()
        }

    def compare(
        self, _row: Any, _original: Any, _args: Any, expected: Pooled, got: Pooled
    ) -> Finding:
        """Return whether the maxima or their indices differ. One value everywhere tells nothing."""
        (maxima, indices), (right, places) = got, expected
        if not bool(((maxima == right) | (maxima.isnan() & right.isnan())).all()):
            return Finding("a maximum differs")
        if not torch.equal(indices, places):
            return Finding("the index of a maximum differs")
        return Finding(tells=bool((right != right.flatten()[0]).any()))


@lru_cache(maxsize=1024)  # each call from Python asks: 4 us, cached 0.6
def pooled_shape(problem: MaxPoolProblem) -> tuple[int, ...]:
    """Return the shape of the maxima; () if PyTorch refuses the arguments, or if it is empty.

    These are the checks of PyTorch's pooling. A meta tensor would tell the same, but the first one
    of a process imports 480 modules, which takes half a second.
    """
    kernel, stride, padding, dilation = (pair(one) for one in problem[1:5])
    if problem.stride == ():  # the default
        stride = kernel
    if not (kernel and stride and padding and dilation) or 0 in problem.shape[1:]:
        return ()
    axes = zip(problem.shape[2:], kernel, stride, padding, dilation, strict=True)
    sizes = [places(*axis, problem.ceil_mode) for axis in axes]
    return (*problem.shape[:2], *sizes) if all(sizes) else ()
