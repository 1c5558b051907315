"""The input gradient of 3-D convolution: PyTorch's own kernel, or that of planes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.passes import INPUT_GRADIENT
from bestof.torch.ops.convolution.plane_rows import plane_rows
from bestof.torch.ops.convolution.planes import (
    gradient_planes,
    gradient_weight,
    single_planes,
    volume_of,
)
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.convolution.volume_operation import VolumeGradient
from bestof.torch.ops.convolution.volume_problem import VolumeProblem
from bestof.torch.ops.row import Row


def as_is(
    original: PyTorchConv, problem: VolumeProblem, gradient: Tensor, input: Tensor, weight: Tensor
) -> Tensor:
    """Return the gradient of the input by PyTorch's own kernel."""
    return original.convolution_backward(  # type: ignore[no-any-return]
        *(gradient, input, weight, None, problem.stride, problem.padding, problem.dilation),
        *(False, (0, 0, 0), problem.groups, (True, False, False)),
    )[0]


def _planes_of(problem: VolumeProblem) -> ConvProblem | None:
    return problem.gradient_planes if problem.stride[0] == 1 else None


def _on_planes(row: Pass) -> Callable[..., Tensor]:
    def run(
        original: PyTorchConv,
        problem: VolumeProblem,
        gradient: Tensor,
        _input: Tensor,
        weight: Tensor,
    ) -> Tensor:
        operands = gradient_planes(gradient, problem), gradient_weight(weight, problem)
        found = row.function(original, problem.gradient_planes, *operands)
        return volume_of(found, problem.input_shape[0])

    return run


class Conv3dInputGradient(VolumeGradient):
    """`aten::convolution_backward` of volumes, asked for the gradient of the input."""

    name = "convolution 3d input gradient"
    rows = (Row("as is", as_is), *plane_rows(INPUT_GRADIENT, _planes_of, _on_planes))

    planar = INPUT_GRADIENT

    def planes(self, problem: VolumeProblem, *operands: Any) -> tuple[Any, ...]:
        """Return the input gradient of planes."""
        gradient, _, weight = operands
        planes = gradient_planes(gradient, problem), gradient_weight(weight, problem)
        return (problem.gradient_planes, *planes)

    def as_planes(self, result: Tensor) -> Tensor:
        """Return the gradients of planes."""
        return single_planes(result)
