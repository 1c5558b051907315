"""3-D convolution: PyTorch's own kernel, or a 2-D convolution of planes.

PyTorch computes small volumes by a kernel without oneDNN: 16 to 32 channels of 16 x 32 x 32 took
17 ms, and Winograd on planes 3 (Zen 4, two threads).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.backends.device import CPU
from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.passes import FORWARD
from bestof.torch.ops.convolution.plane_rows import plane_rows
from bestof.torch.ops.convolution.planes import (
    forward_weight,
    input_planes,
    single_planes,
    volume_of,
)
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.convolution.recognition import is_bias
from bestof.torch.ops.convolution.volume_operation import VolumeOperation, layers
from bestof.torch.ops.convolution.volume_problem import VolumeProblem, volume_problem
from bestof.torch.ops.operation import Call
from bestof.torch.ops.row import Row


def as_is(
    original: PyTorchConv,
    problem: VolumeProblem,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Return the output by PyTorch's own kernel."""
    return original.convolution(  # type: ignore[no-any-return]
        *(input, weight, bias, problem.stride, problem.padding, problem.dilation),
        *(False, (0, 0, 0), problem.groups),
    )


def _on_planes(row: Pass) -> Callable[..., Tensor]:
    def run(
        original: PyTorchConv,
        problem: VolumeProblem,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        operands = input_planes(input, problem), forward_weight(weight), bias
        return volume_of(row.function(original, problem.planes, *operands), problem.input_shape[0])

    return run


class Conv3d(VolumeOperation):
    """`aten::convolution` of volumes."""

    name = "convolution 3d"
    operator = "aten::convolution"
    planar = FORWARD
    rows = (
        Row("as is", as_is),
        *plane_rows(FORWARD, lambda problem: problem.planes, _on_planes),
    )

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return convolutions of 3x3x3."""
        return {name: (x, w, None, *geometry) for name, (x, w, geometry) in layers().items()}

    def call(
        self,
        level: Accuracy,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        _transposed: bool,
        _output_padding: Sequence[int],
        groups: int,
    ) -> Call | None:
        """Return the problem, input, weight and bias of a call; None if PyTorch answers it."""
        geometry = (stride, padding, dilation, groups)
        problem = volume_problem(level, input, weight, bias is not None, *geometry)
        if problem is None or not (bias is None or is_bias(CPU, bias, weight)):
            return None
        return Call(problem, (input, weight, bias))

    def planes(self, problem: VolumeProblem, *operands: Any) -> tuple[Any, ...]:
        """Return the convolution of planes."""
        input, weight, bias = operands
        return problem.planes, input_planes(input, problem), forward_weight(weight), bias

    def as_planes(self, result: Tensor) -> Tensor:
        """Return the outputs of planes."""
        return single_planes(result)
