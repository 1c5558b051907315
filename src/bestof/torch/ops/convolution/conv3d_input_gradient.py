"""The input gradient of 3-D convolution: PyTorch's own kernel, or that of planes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from bestof.torch.convolution.alternative import Alternative
from bestof.torch.convolution.catalogue import INPUT_GRADIENT
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.convolution.verifier import PassVerifier
from bestof.torch.ops.comparison import Finding
from bestof.torch.ops.convolution.plane_rows import alternative_of, plane_rows
from bestof.torch.ops.convolution.planes import (
    gradient_planes,
    gradient_weight,
    single_planes,
    volume_of,
)
from bestof.torch.ops.convolution.volume_operation import VolumeGradient
from bestof.torch.ops.convolution.volume_problem import VolumeProblem
from bestof.torch.ops.row import Row


def as_is(
    original: Originals, problem: VolumeProblem, gradient: Tensor, input: Tensor, weight: Tensor
) -> Tensor:
    """Return the gradient of the input by PyTorch's own kernel."""
    return original.convolution_backward(  # type: ignore[no-any-return]
        *(gradient, input, weight, None, problem.stride, problem.padding, problem.dilation),
        *(False, (0, 0, 0), problem.groups, (True, False, False)),
    )[0]


def _planes_of(problem: VolumeProblem) -> ConvProblem | None:
    return problem.gradient_planes if problem.stride[0] == 1 else None


def _by_planes(alternative: Alternative) -> Callable[..., Tensor]:
    def run(
        original: Originals,
        problem: VolumeProblem,
        gradient: Tensor,
        _input: Tensor,
        weight: Tensor,
    ) -> Tensor:
        operands = gradient_planes(gradient, problem), gradient_weight(weight, problem)
        found = alternative.function(original, *operands, problem.gradient_planes)
        return volume_of(found, problem.input_shape[0])

    return run


class Conv3dInputGradient(VolumeGradient):
    """`aten::convolution_backward` of volumes, asked for the gradient of the input."""

    name = "convolution 3d input gradient"
    rows = (Row("as is", as_is), *plane_rows(INPUT_GRADIENT, _planes_of, _by_planes))

    def compare(
        self,
        row: Row[VolumeProblem],
        original: Any,
        args: tuple[Any, ...],
        expected: Tensor,
        got: Tensor,
    ) -> Finding:
        """Return which gradient is wrong, within what the 2-D convolution promises."""
        problem, gradient, _, weight = args
        planes = (
            problem.gradient_planes,
            gradient_planes(gradient, problem),
            gradient_weight(weight, problem),
        )
        return PassVerifier(INPUT_GRADIENT, original).compare_row(
            alternative_of(INPUT_GRADIENT, row.name),
            planes,
            single_planes(expected),
            single_planes(got),
        )
