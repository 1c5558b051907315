"""The input gradient of 2-D convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bestof.torch.ops.comparison import Scale, energies, root
from bestof.torch.ops.convolution.conv2d_gradient import Conv2dGradient
from bestof.torch.ops.convolution.conv2d_pass import mean
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

    def scale(self, problem: ConvProblem, tensors: Sequence[Tensor | None]) -> Scale:
        """Return the scale of gradients of the input, as that of outputs."""
        gradient, weight = tensors[:2]
        assert gradient is not None
        assert weight is not None
        g, (k, c, r, s) = problem.groups, problem.weight_shape
        filters = energies(weight, (1, 2, 3))
        channels = energies(weight, (2, 3)).reshape(g, k // g, c).sum(1)
        patch = energies(gradient, (1,)).max() * (r * s)
        terms = energies(gradient, (0, 2, 3)) * filters
        return Scale(mean(terms, problem.input_shape), root(channels.max() * patch))
