"""What the operations of the passes of 3-D convolutions share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.ops.comparison import Finding
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.plane_rows import row_of
from bestof.torch.ops.convolution.pytorch_conv import pytorch_conv
from bestof.torch.ops.convolution.volume_problem import (
    VolumeProblem,
    is_gradient,
    volume_problem,
)
from bestof.torch.ops.operation import Call, Operation
from bestof.torch.ops.row import Row

_LAYERS = {
    "2 x 16 x 8 x 32 x 32 to 32": (2, 16, 32, 8, 32),
    "1 x 32 x 16 x 32 x 32 to 32": (1, 32, 32, 16, 32),
}


def layers() -> dict[str, tuple[Tensor, Tensor, tuple[Any, ...]]]:
    """Return inputs and weights of examples, and the geometry of a 3x3x3 kernel."""
    numbers = torch.Generator().manual_seed(0)
    ones = (1, 1, 1)
    return {
        name: (
            torch.randn(images, channels, depth, side, side, generator=numbers),
            torch.randn(filters, channels, 3, 3, 3, generator=numbers),
            (ones, ones, ones, False, (0, 0, 0), 1),
        )
        for name, (images, channels, filters, depth, side) in _LAYERS.items()
    }


class VolumeOperation(Operation[VolumeProblem]):
    """One pass of 3-D convolutions, which the override of 2-D ones asks for."""

    part = True
    planar: Conv2dPass

    @abstractmethod
    def planes(self, problem: VolumeProblem, *operands: Any) -> tuple[Any, ...]:
        """Return the problem and the operands of the pass of planes that computes a call."""

    @abstractmethod
    def as_planes(self, result: Tensor) -> Tensor:
        """Return a result as that of the pass of planes."""

    def compare(
        self,
        row: Row[VolumeProblem],
        original: Any,
        args: tuple[Any, ...],
        expected: Tensor,
        got: Tensor,
    ) -> Finding:
        """Return which result is wrong, within what the pass of planes promises."""
        planar = row_of(self.planar, row.name)
        results = self.as_planes(expected), self.as_planes(got)
        return self.planar.compare(planar, original, self.planes(*args), *results)

    def original(self, _kernels: Any) -> Any:
        """Return PyTorch's own kernels of both operators, as `PyTorchConv`."""
        return pytorch_conv()


class VolumeGradient(VolumeOperation):
    """One gradient. Its operands are the gradient of the output, the input and the weight."""

    operator = "aten::convolution_backward"

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return gradients of convolutions of 3x3x3."""
        return {
            name: (
                torch.randn(x.shape[0], w.shape[0], *x.shape[2:]),
                *(x, w, None, *geometry, (True, True, False)),
            )
            for name, (x, w, geometry) in layers().items()
        }

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
