"""NaN and infinities reach the results that they reach in PyTorch, and no others.

The images have no padding: its zeros times a weight that is NaN are NaN in some of PyTorch's own
kernels too, and in those of bestof. In input gradients, the native kernels and the FFT pad the
gradient, so a weight reaches the border there.
"""

from __future__ import annotations

import pytest
import torch
from torch_convolution_oracle import call, operands

from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.passes import PASSES
from bestof.torch.ops.convolution.problem import parse_conv

PROBLEMS = {
    name: parse_conv(text)
    for name, text in {
        "3x3": "i16x13x14,k16x3x3,b2",
        "3x3, strided": "i16x13x14,k24x3x3,b2,s2",
        "1x1, strided": "i16x13x14,k24x1x1,b2,s2",
        "4x4, strided": "i16x14x14,k16x4x4,b2,s2",
        "5x5, dilated": "i8x17x15,k16x5x5,b2,d2",
        "3x3, grouped": "i16x9x10,k32x3x3,b2,g4",
        "7x7, strided": "i3x21x22,k16x7x7,b2,s2",
    }.items()
}
READ = {
    "forward": ("input", "weight"),
    "input gradient": ("grad_output", "weight"),
    "weight gradient": ("grad_output", "input"),
}
CASES = [
    pytest.param(catalogue, row, name, operand, id=f"{catalogue.direction}-{row}-{name}-{operand}")
    for catalogue in PASSES
    for name, problem in PROBLEMS.items()
    for row in (one.name for one in catalogue.applying(problem) if one is not catalogue.rows[0])
    for operand in READ[catalogue.direction]
    if not (
        catalogue.direction == "input gradient"
        and operand == "weight"
        and row.startswith(("native", "fft"))
    )
]


@pytest.mark.long(every=7)
@pytest.mark.parametrize(("catalogue", "row", "name", "operand"), CASES)
def test_no_other_results(catalogue: Conv2dPass, row: str, name: str, operand: str) -> None:
    problem = PROBLEMS[name]
    first, found = (
        next(one for one in catalogue.rows if one.name == wanted)
        for wanted in (catalogue.rows[0].name, row)
    )
    given = operands(problem, "zero mean")
    for bad in (torch.nan, torch.inf):
        for at in (0, given[operand].numel() // 2, given[operand].numel() - 1):
            planted = given[operand].clone()
            planted.view(-1)[at] = bad
            tensors = given | {operand: planted}
            right = call(catalogue, first, tensors, problem)
            got = call(catalogue, found, tensors, problem)
            assert torch.equal(got.isfinite(), right.isfinite()), (bad, at)
