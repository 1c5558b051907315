"""The gradient of average pooling: chooses among rows with the same sums.

PyTorch's own kernel adds single elements in channels first, and vectors of channels in channels
last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.ops.dtypes import FLOAT32, FLOAT64
from bestof.torch.ops.examples import random
from bestof.torch.ops.memory_format import in_format
from bestof.torch.ops.operation import Call
from bestof.torch.ops.pooling.avg_pool2d import AvgPool2d, AvgPoolProblem, pooled_shape
from bestof.torch.ops.pooling.image import (
    is_chosen_for,
    is_dense,
    like_rows,
    planes_of,
    rows_of,
)
from bestof.torch.ops.pooling.pooling import Pooling
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.row import Row


def as_is(original: Kernel, problem: AvgPoolProblem, gradient: Tensor, image: Tensor) -> Tensor:
    """Return the gradient of the images by PyTorch's own kernel."""
    return original(gradient, image, *problem[1:7])  # type: ignore[no-any-return]


def channels_last(
    original: Kernel, problem: AvgPoolProblem, gradient: Tensor, image: Tensor
) -> Tensor:
    """Return the gradient of the images by PyTorch's own kernel, in channels last."""
    rows = gradient.contiguous(memory_format=torch.channels_last)
    return in_format(original(rows, like_rows(image), *problem[1:7]), False)


def transposed(
    original: Kernel, problem: AvgPoolProblem, gradient: Tensor, image: Tensor
) -> Tensor:
    """Return the gradient of the images in channels last, with native transpositions around."""
    return planes_of(original(rows_of(gradient), like_rows(image), *problem[1:7]))


class AvgPool2dBackward(Pooling[AvgPoolProblem]):
    """`aten::avg_pool2d_backward`."""

    name = "average pooling backward"
    operator = "aten::avg_pool2d_backward"
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
        gradient: Tensor,
        image: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Call | None:
        """Return the problem, the gradient and the image of a call; None if PyTorch answers it."""
        if (
            not is_chosen_for(image, self.dtypes)
            or divisor_override == 0
            or not is_dense(gradient, image)
        ):
            return None
        problem = AvgPoolProblem.of(
            image,
            (kernel_size, stride, padding),
            ceil_mode,
            count_include_pad,
            divisor_override,
        )
        if tuple(gradient.shape) != pooled_shape(problem):
            return None
        return Call(problem, (gradient, image))

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return gradients of poolings of large images by two windows."""
        found = {}
        for name, (x, *window) in AvgPool2d().examples().items():
            size = torch.nn.functional.avg_pool2d(x, *window).shape
            found[name] = (random(*size), x, *window)
        return found
