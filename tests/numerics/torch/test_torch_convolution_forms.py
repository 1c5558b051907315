"""1-D, transposed and 3-D convolutions by every alternative against float64, within its bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_convolution_oracle import ORIGINALS, assert_within, operands, reference

import bestof.torch as bt
from bestof.selection import Fixed, use_policy
from bestof.selection.policies.policy import Search
from bestof.torch.dispatch.overrides import convolution_override
from bestof.torch.ops.convolution import recognition
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.conv3d import Conv3d
from bestof.torch.ops.convolution.conv3d_input_gradient import Conv3dInputGradient
from bestof.torch.ops.convolution.conv3d_weight_gradient import Conv3dWeightGradient
from bestof.torch.ops.convolution.passes import FORWARD, PASSES
from bestof.torch.ops.convolution.plane_rows import row_of
from bestof.torch.ops.convolution.problem import ConvProblem, parse_conv
from bestof.torch.ops.convolution.volume_problem import VolumeProblem, volume_problem
from fresh_process import fresh_process


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recognition, "LEAST_PRODUCTS", 1)
    yield from fresh_process(monkeypatch)


class Prefer:
    """Chooses a name where there is one, or else the first."""

    def __init__(self, name: str) -> None:
        self._name = name

    def start(self, alternatives: Sequence[str]) -> Search:
        names = (self._name, "independent", alternatives[0])
        chosen = next(one for one in names if one in alternatives)
        return Fixed(chosen).start(alternatives)


# The ordinary 2-D convolution of each: the image is the result of a transposed one.
LINES = {
    "ECG": "i16x1x60,k32x1x7,b3,s1,p0x3",
    "stem": "i12x1x64,k16x1x15,b2,s1x2,p0x7",
    "pointwise": "i32x1x40,k17x1x1,b2",
    "dilated": "i8x1x50,k8x1x3,b2,p0x4,d1x4",
    "depthwise": "i24x1x31,k24x1x5,b2,p0x2,g24",
    "grouped, strided": "i12x1x33,k18x1x4,b1,s1x3,p0x1,g3",
}
IMAGES = {
    "DCGAN": "i32x16x16,k64x4x4,b3,s2,p1",
    "first": "i40x4x4,k20x4x4,b4",
    "up": "i24x12x14,k48x2x2,b2,s2",
    "with a remainder": "i16x12x11,k24x3x3,b2,s2,p1",
    "3x3": "i32x14x14,k32x3x3,b2,p1",
    "5x5": "i16x12x12,k16x5x5,b2,p2",
    "1x7": "i16x9x14,k16x1x7,b2,p0x3",
    "grouped": "i12x9x8,k18x3x3,b2,s2x1,p1,g3",
    "depthwise": "i16x9x9,k16x3x3,b2,p1,g16",
    "dilated": "i8x13x12,k8x3x2,b2,p2,d2",
}
FORMS = [
    *(("line", text) for text in LINES.values()),
    *(("transposed line", text) for text in LINES.values()),
    *(("transposed", text) for text in IMAGES.values()),
]
NAMES = list(dict.fromkeys(row.name for one in PASSES for row in one.rows))


def passes(form: str, problem: ConvProblem) -> tuple[Tensor, Tensor, Tensor]:
    """Return output, gradient of the input and gradient of the weight, as the passes of the
    ordinary convolution: forward, input gradient, weight gradient."""
    tensors = operands(problem, "zero mean")
    image, result = tensors["input"], tensors["grad_output"]
    is_transposed, is_line = "transposed" in form, "line" in form
    x, gradient, w = (
        (result, image, tensors["weight"])
        if is_transposed
        else (
            image,
            result,
            tensors["weight"],
        )
    )
    axes = [list(one) for one in (problem.stride, problem.padding, problem.dilation)]
    more = [0, 0]
    if is_transposed:
        more = [
            size - ((many - 1) * s - 2 * p + d * (taps - 1) + 1)
            for size, many, s, p, d, taps in zip(
                *(image.shape[2:], result.shape[2:], *axes, w.shape[2:]), strict=True
            )
        ]
    if is_line:
        x, gradient, w = (one.squeeze(2) for one in (x, gradient, w))
        axes, more = [one[1:] for one in axes], more[1:]
    leaves = [one.clone().requires_grad_() for one in (x, w)]
    output = torch.ops.aten.convolution(*leaves, None, *axes, is_transposed, more, problem.groups)
    found = torch.autograd.grad(output, leaves, gradient)
    both = [one.unsqueeze(2) if is_line else one for one in (output.detach(), *found)]
    forward, of_input, of_weight = both
    return (of_input, forward, of_weight) if is_transposed else (forward, of_input, of_weight)


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", NAMES)
def test_every_alternative_keeps_its_promise(name: str) -> None:
    use_policy(Prefer(name))
    ran = 0
    for form, text in FORMS:
        problem = parse_conv(text)
        bt.enable({"kernel": {"accuracy": "relaxed"}})
        found = passes(form, problem)
        bt.disable()
        for catalogue, result in zip(PASSES, found, strict=True):
            asked = problem._replace(accuracy="relaxed")
            rows = {row.name: row for row in catalogue.applying(asked)}
            ran += name in rows
            row = rows.get(name, catalogue.rows[0])
            # PyTorch's own kernel answers where the row does not apply to the layout.
            bounds = [catalogue.bound(one, problem) for one in (row, catalogue.rows[0])]
            bound = max(bounds, key=lambda one: one.rms)
            assert_within(result, reference(catalogue.direction, problem, "zero mean"), bound)
    if name.startswith(("as is", "native conv", "native direct", "im2")):
        override = convolution_override()
        assert override is not None
        decided = [set(one.best_name.values()) for one, _ in override.layer.passes]
        assert any(name in one for one in decided)
        assert ran >= len(FORMS)


VOLUMES: dict[str, tuple[Any, ...]] = {
    # input, weight, stride, padding, dilation, groups
    "3x3x3": ((2, 16, 6, 10, 9), (32, 16, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1),
    "stem": ((1, 1, 7, 12, 12), (16, 1, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1),
    "strided": ((2, 8, 7, 9, 8), (12, 8, 3, 3, 3), (2, 2, 1), (1, 1, 1), (1, 1, 1), 1),
    "flat": ((1, 16, 5, 8, 8), (16, 16, 1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1), 1),
    "deep": ((2, 16, 9, 6, 6), (16, 16, 3, 1, 1), (1, 1, 1), (1, 0, 0), (1, 1, 1), 1),
    "pointwise": ((2, 16, 4, 6, 6), (24, 16, 1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1), 1),
    "grouped": ((2, 12, 6, 7, 7), (18, 4, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 3),
    "depthwise": ((1, 16, 6, 7, 7), (16, 1, 3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 16),
    "dilated": ((1, 8, 9, 10, 10), (8, 8, 3, 3, 3), (1, 1, 1), (2, 2, 2), (2, 2, 2), 1),
    "padded much": ((1, 8, 3, 8, 8), (8, 8, 2, 3, 3), (1, 1, 1), (3, 1, 1), (1, 1, 1), 1),
    "rest of the depth": ((1, 8, 8, 6, 6), (8, 8, 2, 3, 3), (3, 1, 1), (0, 1, 1), (1, 1, 1), 1),
}
OPERATIONS = (Conv3d(), Conv3dInputGradient(), Conv3dWeightGradient())
VOLUME_ROWS = [
    pytest.param(operation, row, catalogue, id=f"{operation.name}-{row.name}")
    for operation, catalogue in zip(OPERATIONS, PASSES, strict=True)
    for row in operation.rows
]


@pytest.mark.parametrize(("operation", "row", "catalogue"), VOLUME_ROWS)
def test_every_row_of_volumes_keeps_its_promise(
    operation: Any, row: Any, catalogue: Conv2dPass
) -> None:
    generator = torch.Generator().manual_seed(3)
    for shape, kernel, *axes, groups in VOLUMES.values():
        x, w = (torch.randn(one, generator=generator) for one in (shape, kernel))
        bias = torch.randn(kernel[0], generator=generator)
        problem = volume_problem("relaxed", x, w, catalogue is FORWARD, *axes, groups)
        assert problem is not None
        if not row.can_run(problem):
            continue
        gradient = torch.randn(problem.output_shape, generator=generator)
        tensors: tuple[Tensor, ...] = (gradient, x, w)
        if catalogue is FORWARD:
            tensors = (x, w, bias)
        got = row.function(ORIGINALS, problem, *tensors)
        exact = operation.rows[0].function(ORIGINALS, problem, *(one.double() for one in tensors))
        # As of the strides that a tensor of this shape is allocated with.
        assert got.stride() == torch.empty(exact.shape).stride()
        assert_within(got, exact, bound_of(row.name, catalogue, problem))


def bound_of(name: str, catalogue: Conv2dPass, problem: VolumeProblem) -> Any:
    planes = problem.planes
    if catalogue.direction == "input gradient" and problem.stride[0] == 1:
        planes = problem.gradient_planes
    return catalogue.bound(row_of(catalogue, name), planes)


def test_every_kind_of_row_applies_to_a_volume() -> None:
    names: set[str] = set()
    for shape, kernel, *axes, groups in VOLUMES.values():
        problem = volume_problem(
            "float32", torch.empty(shape), torch.empty(kernel), True, *axes, groups
        )
        names.update(row.name for row in Conv3d.rows if row.can_run(problem))  # type: ignore[arg-type]
    assert {"as is", "planes: as is", "planes: native winograd4", "planes: im2row"} <= names


def random_call(seed: int) -> Callable[[], list[Tensor]]:
    """Return a function that computes a random convolution and its gradients."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    axes = number(1, 3)
    is_transposed = axes < 3 and number(0, 2) > 0
    groups = (1, 1, 2)[number(0, 2)]
    channels, filters = groups * number(1, 5), groups * number(1, 5)
    stride, dilation = ([number(1, 2) for _ in range(axes)] for _ in range(2))
    padding = [number(0, 2) for _ in range(axes)]
    more = [
        number(0, max(*pair) - 1) * is_transposed for pair in zip(stride, dilation, strict=True)
    ]
    shape = (number(1, 2), channels, *(number(1, 8) for _ in range(axes)))
    kernel = [number(1, 3) for _ in range(axes)]
    weight = (channels, filters // groups) if is_transposed else (filters, channels // groups)
    x, w = (torch.randn(one, generator=generator) for one in (shape, (*weight, *kernel)))
    if number(0, 2) == 0:
        x = x.transpose(1, -1).contiguous().transpose(1, -1)
    if number(0, 2) == 0:
        w = w.transpose(1, -1).contiguous().transpose(1, -1)
    wanted = (number(0, 3) > 0, number(0, 3) > 0)
    bias = torch.randn(filters, generator=generator) if number(0, 1) else None
    turns, order = number(0, 2) == 0, number(0, 10)

    def compute() -> list[Tensor]:
        leaves = [
            one.detach().requires_grad_(here) for one, here in zip((x, w), wanted, strict=True)
        ]
        output = torch.ops.aten.convolution(
            *(*leaves, bias, stride, padding, dilation, is_transposed, more, groups)
        )
        needed = [one for one in leaves if one.requires_grad]
        if not needed:
            return [output]
        gradient = torch.randn(output.shape, generator=torch.Generator().manual_seed(order))
        if turns:
            gradient = gradient.transpose(1, -1).contiguous().transpose(1, -1)
        return [output.detach(), *torch.autograd.grad(output, needed, gradient)]

    return compute


def outcome(compute: Callable[[], list[Tensor]]) -> tuple[list[Tensor], str]:
    """Return the results, and the text of the error if there are none."""
    try:
        return compute(), ""
    except RuntimeError as error:
        return [], str(error)


@pytest.mark.parametrize("name", ["as is", "im2row", "native convgemm", "channels last"])
@pytest.mark.parametrize("part", range(4))
def test_results_look_like_pytorchs(name: str, part: int) -> None:
    """Random sizes, strides, layouts and gradients: the same shapes, strides, errors."""
    use_policy(Prefer(name))
    for seed in range(60 * part, 60 * (part + 1)):
        compute = random_call(seed)
        expected, refusal = outcome(compute)
        with bt.enabled():
            found, same = outcome(compute)
        assert same == refusal
        for got, wanted in zip(found, expected, strict=True):
            assert got.stride() == wanted.stride(), seed
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
