"""What the operations of the passes of 3-D convolutions share."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.convolution.originals import originals
from bestof.torch.ops.convolution.volume_problem import (
    VolumeProblem,
    is_gradient,
    volume_problem,
)
from bestof.torch.ops.operation import Call, Operation


class VolumeOperation(Operation[VolumeProblem]):
    """One pass of 3-D convolutions, which the override of 2-D ones asks for."""

    part = True

    def original(self, _kernels: Any) -> Any:
        """Return PyTorch's own kernels of both operators, as `Originals`."""
        return originals()


class VolumeGradient(VolumeOperation):
    """One gradient. Its operands are the gradient of the output, the input and the weight."""

    operator = "aten::convolution_backward"

    def call(
        self,
        level: Accuracy,
        gradient: Tensor,
        input: Tensor,
        weight: Tensor,
        _bias_sizes: Any,
        *geometry: Any,
    ) -> Call | None:
        """Return the problem and the operands of a call; None if PyTorch answers it."""
        stride, padding, dilation, _transposed, _output_padding, groups, _mask = geometry
        axes = stride, padding, dilation, groups
        problem = volume_problem(level, input, weight, False, *axes)
        if problem is None or not is_gradient(problem, gradient):
            return None
        return Call(problem, (gradient, input, weight))
