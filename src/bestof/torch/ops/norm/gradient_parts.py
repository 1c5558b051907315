"""How far the gradients of a norm may be off."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bestof.torch.ops.bound import summation_bound
from bestof.torch.ops.comparison import Scale, root
from bestof.torch.ops.distance import peak, size_of
from bestof.torch.ops.rounding_operation import Part


def gradient_parts(
    gradient: Tensor,
    distance: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    sums: Tensor,
    size: int,
    terms: int,
) -> Sequence[Part]:
    """Return the scales and bounds of the gradients of input, weight and bias.

    distance: the means over the deviations. sums: the sums of the squared gradients that each
    element of the weight meets. size: the numbers over which a mean is taken. terms: those over
    which the gradients of weight and bias are summed.
    """
    numbers, factor = size_of(gradient), 1.0 if weight is None else size_of(weight).peak
    steep = peak(torch.nan_to_num(rstd, 0.0, 0.0, 0.0)) * factor
    far = 1.0 + peak(torch.nan_to_num(distance, 0.0, 0.0, 0.0))
    mean_sum, largest = root(sums.mean()), root(sums.max())
    within, over = (summation_bound(n, "float32") for n in (size, terms))
    return (
        Part(Scale(3 * steep * far * numbers.rms, 3 * steep * far * numbers.peak), within, within),
        Part(Scale(far * mean_sum, far * largest), over, over),
        Part(Scale(mean_sum, largest), over, over),
    )
