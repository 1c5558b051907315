"""The weight gradient of 3-D convolution: PyTorch's own kernel, or that of planes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.passes import WEIGHT_GRADIENT
from bestof.torch.ops.convolution.plane_rows import plane_rows
from bestof.torch.ops.convolution.planes import (
    forward_weight,
    input_planes,
    single_planes,
    weight_of,
)
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.convolution.volume_operation import VolumeGradient
from bestof.torch.ops.convolution.volume_problem import VolumeProblem
from bestof.torch.ops.row import Row


def as_is(
    original: PyTorchConv, problem: VolumeProblem, gradient: Tensor, input: Tensor, weight: Tensor
) -> Tensor:
    """Return the gradient of the weight by PyTorch's own kernel."""
    return original.convolution_backward(  # type: ignore[no-any-return]
        *(gradient, input, weight, None, problem.stride, problem.padding, problem.dilation),
        *(False, (0, 0, 0), problem.groups, (False, True, False)),
    )[1]


def _planes_of(problem: VolumeProblem) -> ConvProblem:
    return problem.planes._replace(bias=False, grad_layout="channels_last")


def _on_planes(row: Pass) -> Callable[..., Tensor]:
    def run(
        original: PyTorchConv,
        problem: VolumeProblem,
        gradient: Tensor,
        input: Tensor,
        _weight: Tensor,
    ) -> Tensor:
        operands = single_planes(gradient), input_planes(input, problem)
        return weight_of(row.function(original, _planes_of(problem), *operands), problem)

    return run


class Conv3dWeightGradient(VolumeGradient):
    """`aten::convolution_backward` of volumes, asked for the gradient of the weight."""

    name = "convolution 3d weight gradient"
    rows = (Row("as is", as_is), *plane_rows(WEIGHT_GRADIENT, _planes_of, _on_planes))

    planar = WEIGHT_GRADIENT

    def planes(self, problem: VolumeProblem, *operands: Any) -> tuple[Any, ...]:
        """Return the weight gradient of planes."""
        gradient, input, _ = operands
        return _planes_of(problem), single_planes(gradient), input_planes(input, problem)

    def as_planes(self, result: Tensor) -> Tensor:
        """Return the gradient of the weight of planes."""
        return forward_weight(result)
