"""The rows of a pass of 3-D convolutions: PyTorch's own, and those of a pass of planes."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from bestof.torch.ops.convolution import onednn
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.estimate import operand_bytes
from bestof.torch.ops.convolution.lowered import scratch_limit
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.volume_problem import VolumeProblem
from bestof.torch.ops.row import Row

_NAME = "planes: "
_FORMERLY = ("bestof:_by_planes.<locals>.run",)

# Those that move elements around before they multiply: planes are such a copy already.
_COPYING = ("im2col", "fft", "swap: ")

PlanesOf = Callable[[VolumeProblem], ConvProblem | None]


def plane_rows(
    planar: Conv2dPass,
    planes_of: PlanesOf,
    run: Callable[[Pass], Callable[..., Tensor]],
) -> tuple[Row[VolumeProblem], ...]:
    """Return a row for each row of the 2-D pass that can win on planes.

    planes_of: returns the 2-D problem, or None if there is none. run: returns the function of the
    row from the alternative.
    """

    def row(one: Pass) -> Row[VolumeProblem]:
        def supports(problem: VolumeProblem) -> bool:
            planes = planes_of(problem)
            return (
                planes is not None
                and one.supports(planes)
                and (one is not planar.rows[0] or onednn.serves(planes, planar.direction))
                and operand_bytes(planes) <= scratch_limit(problem_of_volume(problem))
            )

        def scratch(problem: VolumeProblem) -> int:
            planes = planes_of(problem)
            assert planes is not None  # it is supported
            inside = 0 if one.scratch is None else one.scratch(planes)
            return inside + int(operand_bytes(planes))

        def promising(problem: VolumeProblem) -> bool:
            planes = planes_of(problem)
            return planes is not None and one.name in planar.promising(planes)

        return Row(
            _NAME + one.name,
            run(one),
            supports,
            promising,
            dtypes=one.dtypes,
            accuracy=one.accuracy,
            scratch=scratch,
            formerly=_FORMERLY,
        )

    return tuple(row(one) for one in planar.rows if not one.name.startswith(_COPYING))


def problem_of_volume(problem: VolumeProblem) -> ConvProblem:
    """Return a 2-D problem whose operands have the bytes of those of a 3-D one."""
    n, c, d, h, w = problem.input_shape
    k, group, taps, r, s = problem.weight_shape
    return problem.planes._replace(
        input_shape=(n * d, c, h, w), weight_shape=(k, group * taps, r, s)
    )


def row_of(planar: Conv2dPass, name: str) -> Pass:
    """Return the row of the 2-D pass that a row runs; the first one for PyTorch's own."""
    inner = name.removeprefix(_NAME)
    return next(
        (one for one in planar.rows if name != inner and one.name == inner),
        planar.rows[0],
    )
