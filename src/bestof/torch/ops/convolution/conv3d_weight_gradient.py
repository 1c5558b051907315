"""The weight gradient of 3-D convolution: PyTorch's own kernel, or that of planes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from bestof.torch.convolution.alternative import Alternative
from bestof.torch.convolution.catalogue import WEIGHT_GRADIENT
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.convolution.verifier import PassVerifier
from bestof.torch.ops.comparison import Finding
from bestof.torch.ops.convolution.plane_rows import alternative_of, plane_rows
from bestof.torch.ops.convolution.planes import (
    forward_weight,
    input_planes,
    single_planes,
    weight_of,
)
from bestof.torch.ops.convolution.volume_operation import VolumeGradient
from bestof.torch.ops.convolution.volume_problem import VolumeProblem
from bestof.torch.ops.row import Row


def as_is(
    original: Originals, problem: VolumeProblem, gradient: Tensor, input: Tensor, weight: Tensor
) -> Tensor:
    """Return the gradient of the weight by PyTorch's own kernel."""
    return original.convolution_backward(  # type: ignore[no-any-return]
        *(gradient, input, weight, None, problem.stride, problem.padding, problem.dilation),
        *(False, (0, 0, 0), problem.groups, (False, True, False)),
    )[1]


def _planes_of(problem: VolumeProblem) -> ConvProblem:
    return problem.planes._replace(bias=False, grad_layout="channels_last")


def _by_planes(alternative: Alternative) -> Callable[..., Tensor]:
    def run(
        original: Originals,
        problem: VolumeProblem,
        gradient: Tensor,
        input: Tensor,
        _weight: Tensor,
    ) -> Tensor:
        operands = single_planes(gradient), input_planes(input, problem)
        return weight_of(alternative.function(original, *operands, _planes_of(problem)), problem)

    return run


class Conv3dWeightGradient(VolumeGradient):
    """`aten::convolution_backward` of volumes, asked for the gradient of the weight."""

    name = "convolution 3d weight gradient"
    rows = (Row("as is", as_is), *plane_rows(WEIGHT_GRADIENT, _planes_of, _by_planes))

    def compare(
        self,
        row: Row[VolumeProblem],
        original: Any,
        args: tuple[Any, ...],
        expected: Tensor,
        got: Tensor,
    ) -> Finding:
        """Return which gradient is wrong, within what the 2-D convolution promises."""
        problem, gradient, input, _ = args
        planes = (_planes_of(problem), single_planes(gradient), input_planes(input, problem))
        return PassVerifier(WEIGHT_GRADIENT, original).compare_row(
            alternative_of(WEIGHT_GRADIENT, row.name),
            planes,
            forward_weight(expected),
            forward_weight(got),
        )
