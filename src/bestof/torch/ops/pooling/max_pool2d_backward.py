"""The gradient of maximum pooling: chooses among rows with the same sums."""

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
from bestof.torch.ops.pooling.image import is_chosen_for, is_dense, like_rows
from bestof.torch.ops.pooling.max_pool2d import MaxPool2d, MaxPoolProblem, pooled_shape
from bestof.torch.ops.pooling.pooling import Pooling
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.row import Row


def as_is(
    original: Kernel, problem: MaxPoolProblem, gradient: Tensor, image: Tensor, indices: Tensor
) -> Tensor:
    """Return the gradient of the images by PyTorch's own kernel."""
    return original(gradient, image, *problem[1:6], indices)  # type: ignore[no-any-return]


def scattered(
    _original: Kernel, _problem: MaxPoolProblem, gradient: Tensor, image: Tensor, indices: Tensor
) -> Tensor:
    """Return the gradient of the images by one addition to the elements of their planes."""
    n, c, h, w = image.shape
    planes = gradient.new_zeros((n * c, h * w))
    planes.scatter_add_(1, indices.view(n * c, -1), gradient.detach().view(n * c, -1))
    return planes.view(n, c, h, w)


def channels_last(
    original: Kernel, problem: MaxPoolProblem, gradient: Tensor, image: Tensor, indices: Tensor
) -> Tensor:
    """Return the gradient of the images by PyTorch's own kernel, in channels last."""
    rows = gradient.contiguous(memory_format=torch.channels_last)
    chosen = indices.contiguous(memory_format=torch.channels_last)
    return in_format(original(rows, like_rows(image), *problem[1:6], chosen), False)


class MaxPool2dBackward(Pooling[MaxPoolProblem]):
    """`aten::max_pool2d_with_indices_backward`."""

    name = "max pooling backward"
    operator = "aten::max_pool2d_with_indices_backward"
    rows = (
        Row("as is", as_is),
        Row("channels last", channels_last, dtypes=(FLOAT32, FLOAT64)),
        Row("scatter", scattered, dtypes=(FLOAT32, FLOAT64)),
    )

    def call(
        self,
        _level: Accuracy,
        gradient: Tensor,
        image: Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool,
        indices: Tensor,
    ) -> Call | None:
        """Return the problem and the tensors of a call; None if PyTorch answers it."""
        if not is_chosen_for(image, self.dtypes) or not is_dense(gradient, image):
            return None
        if not indices.is_contiguous() or indices.shape != gradient.shape:
            return None
        problem = MaxPoolProblem.of(image, (kernel_size, stride, padding, dilation), ceil_mode)
        if tuple(gradient.shape) != pooled_shape(problem):
            return None
        return Call(problem, (gradient, image, indices))

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return gradients of poolings of large images by two windows."""
        found = {}
        for name, (x, *window) in MaxPool2d().examples().items():
            maxima, indices = torch.nn.functional.max_pool2d_with_indices(x, *window)
            found[name] = (random(*maxima.shape), x, *window, indices)
        return found
