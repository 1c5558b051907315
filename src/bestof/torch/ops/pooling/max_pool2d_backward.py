"""The gradient of maximum pooling: chooses among rows with the same sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.comparison import Finding
from bestof.torch.convolution.memory_format import in_format
from bestof.torch.ops.operation import Call
from bestof.torch.ops.originals import Original
from bestof.torch.ops.pooling.image import dtype_of, is_dense, like_rows
from bestof.torch.ops.pooling.max_pool2d import MaxPool2d, MaxPoolProblem, pooled_shape
from bestof.torch.ops.pooling.pooling import Pooling, image
from bestof.torch.ops.row import Row


def as_is(
    original: Original, problem: MaxPoolProblem, gradient: Tensor, image: Tensor, indices: Tensor
) -> Tensor:
    """Return the gradient of the images by PyTorch's own kernel."""
    return original(gradient, image, *problem[1:6], indices)  # type: ignore[no-any-return]


def scattered(
    _original: Original, _problem: MaxPoolProblem, gradient: Tensor, image: Tensor, indices: Tensor
) -> Tensor:
    """Return the gradient of the images by one addition to the elements of their planes."""
    n, c, h, w = image.shape
    planes = gradient.new_zeros((n * c, h * w))
    planes.scatter_add_(1, indices.view(n * c, -1), gradient.detach().view(n * c, -1))
    return planes.view(n, c, h, w)


def channels_last(
    original: Original, problem: MaxPoolProblem, gradient: Tensor, image: Tensor, indices: Tensor
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
        Row("channels last", channels_last),
        Row("scatter", scattered),
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
        dtype = dtype_of(image)
        if dtype is None or not is_dense(gradient, image):
            return None
        if not indices.is_contiguous() or indices.shape != gradient.shape:
            return None
        problem = MaxPoolProblem(
            tuple(image.shape),
            tuple(kernel_size),
            tuple(stride),
            tuple(padding),
            tuple(dilation),
            ceil_mode,
            dtype,
            torch.get_num_threads(),
        )
        if tuple(gradient.shape) != pooled_shape(problem):
            return None
        return Call(problem, (gradient, image, indices))

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return gradients of poolings of large images by two windows."""
        found = {}
        for name, (x, *window) in MaxPool2d().examples().items():
            maxima, indices = torch.nn.functional.max_pool2d_with_indices(x, *window)
            found[name] = (image(maxima.shape), x, *window, indices)
        return found

    def compare(
        self, _row: Any, _original: Any, _args: Any, expected: Tensor, got: Tensor
    ) -> Finding:
        """Return whether gradients differ in any bit. One value everywhere tells nothing."""
        same = (got == expected) | (got.isnan() & expected.isnan())
        if not bool(same.all()):
            return Finding("a gradient differs")
        return Finding(tells=bool((expected != expected.flatten()[0]).any()))
