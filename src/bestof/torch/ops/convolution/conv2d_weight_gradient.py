"""The weight gradient of 2-D convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from bestof.torch.ops.combination import Combination, combined
from bestof.torch.ops.comparison import Scale, energies, root
from bestof.torch.ops.convolution.conv2d_gradient import Conv2dGradient
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.operation import Operands


class Conv2dWeightGradient(Conv2dGradient):
    """`aten::convolution_backward`, asked for the gradient of the weight.

    The operands are the gradient of the output and the input.
    """

    direction = "weight gradient"

    def read(self, grad_output: Tensor, input: Tensor, _weight: Tensor) -> Operands:
        """Return the gradient of the output and the input."""
        return grad_output, input

    def combination(self, args: tuple[Any, ...]) -> Combination | None:
        """Return the gradient of one combination of the filters."""
        problem, gradient, input = args
        k, *filter = problem.weight_shape
        smaller = problem._replace(weight_shape=(1, *filter))
        numbers = self.numbers(smaller, k) if problem.groups == 1 else None
        if numbers is None:
            return None
        images = torch.cat([combined(image, numbers) for image in gradient]).unsqueeze(1)
        return Combination((smaller, images, input), numbers)

    def scale(self, problem: ConvProblem, tensors: Sequence[Tensor | None]) -> Scale:
        """Return the scale of gradients of the weight: exact sums of squared terms, tap by tap."""
        gradient, input = tensors[:2]
        assert gradient is not None
        assert input is not None
        g, (p, q) = problem.groups, gradient.shape[2:]
        (_, _, r, s), (top, left) = problem.weight_shape, problem.padding
        squares = energies(_grouped(gradient, g), (2,))
        image = energies(_grouped(input, g), (2,))
        image = torch.nn.functional.pad(image, (left, left, top, top))
        (down, across), (high, wide) = problem.stride, problem.dilation
        total = sum(
            float(
                (squares * image[..., y : y + p * down : down, x : x + q * across : across]).sum()
            )
            for y in range(0, r * high, high)
            for x in range(0, s * wide, wide)
        )
        largest = energies(gradient, (0, 2, 3)).max() * energies(input, (0, 2, 3)).max()
        return Scale(root(total / prod(problem.weight_shape)), root(largest))


def _grouped(images: Tensor, groups: int) -> Tensor:
    n, c, h, w = images.shape
    return images.reshape(n, groups, c // groups, h, w)
