"""The input gradient of 2-D convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from bestof.torch.ops.combination import Combination, combined
from bestof.torch.ops.comparison import Scale, energies, root
from bestof.torch.ops.convolution.conv2d_gradient import Conv2dGradient
from bestof.torch.ops.convolution.conv2d_pass import mean, one_image
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.operation import Operands


class Conv2dInputGradient(Conv2dGradient):
    """`aten::convolution_backward`, asked for the gradient of the input.

    The operands are the gradient of the output and the weight.
    """

    direction = "input gradient"

    def read(self, grad_output: Tensor, _input: Tensor, weight: Tensor) -> Operands:
        """Return the gradient of the output and the weight."""
        return grad_output, weight

    def combination(self, args: tuple[Any, ...]) -> Combination | None:
        """Return the gradient of one combination of the images."""
        problem, gradient, weight = args
        smaller = one_image(problem)
        numbers = self.numbers(smaller, len(gradient))
        if numbers is None:
            return None
        return Combination((smaller, combined(gradient, numbers), weight), numbers)

    def scale(self, problem: ConvProblem, tensors: Sequence[Tensor | None]) -> Scale:
        """Return the scale of gradients of the input, as that of outputs."""
        gradient, weight = tensors[:2]
        assert gradient is not None
        assert weight is not None
        g, (k, c, r, s) = problem.groups, problem.weight_shape
        squares = energies(weight, (2, 3))
        filters, channels = squares.sum(1), squares.reshape(g, k // g, c).sum(1)
        patch = energies(gradient, (1,)).max() * (r * s)
        terms = energies(gradient, (0, 2, 3)) * filters
        return Scale(mean(terms, problem.input_shape), root(channels.max() * patch))
