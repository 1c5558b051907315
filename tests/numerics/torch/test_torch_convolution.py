"""Every alternative of the three catalogues against float64, within the bounds that it promises."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch_convolution_oracle import ORIGINALS, assert_within, call, operands, pytorch, reference

from bestof.torch.ops.bound import ErrorBound
from bestof.torch.ops.convolution import shared_im2row
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.passes import FORWARD, PASSES, WEIGHT_GRADIENT
from bestof.torch.ops.convolution.problem import ConvProblem, parse_conv

NETWORKS = {
    "VGG16 conv1_1": "i3x32x32,k64x3x3,b8,p1",
    "VGG16 conv1_2": "i64x32x32,k64x3x3,b2,p1",
    "VGG16 conv3_1": "i128x8x8,k256x3x3,b4,p1",
    "VGG16 conv5": "i512x2x2,k512x3x3,b4,p1",
    "ResNet stem": "i3x64x64,k64x7x7,b2,s2,p3",
    "ResNet 3x3 s2": "i64x28x28,k128x3x3,b2,s2,p1",
    "ResNet 1x1": "i256x14x14,k64x1x1,b4",
    "ResNet 1x1 s2": "i64x28x28,k128x1x1,b2,s2",
    "ResNet 7x7 image": "i512x7x7,k512x3x3,b1,p1",
    "GoogLeNet 5x5": "i32x14x14,k96x5x5,b4,p2",
    "Inception 1x7": "i64x17x17,k64x1x7,b2,p0x3",
    "Inception 7x1": "i64x17x17,k64x7x1,b2,p3x0",
    "DeepLab dilated": "i32x28x28,k32x3x3,b2,p4,d4",
    "ResNeXt grouped": "i64x14x14,k64x3x3,b4,p1,g8",
    "MobileNet depthwise": "i96x14x14,k96x3x3,b2,p1,g96",
    "MobileNet depthwise s2": "i96x14x14,k96x3x3,b2,s2,p1,g96",
    "ConvNeXt 7x7 depthwise": "i32x14x14,k32x7x7,b2,p3,g32",
    "AlexNet stem": "i3x63x63,k64x11x11,b2,s4,p2",
    "31x31": "i16x24x24,k16x31x31,b1,p15",
    "RepLKNet 31x31 depthwise": "i16x24x24,k16x31x31,b2,p15,g16",
    "deep": "i1024x4x4,k65x3x3,b2,p1",
    "many images": "i3x12x12,k5x5x5,b640",
}
AWKWARD = {
    "one of everything": "i1x9x9,k1x3x3,b1",
    "3 to 17 channels": "i3x13x11,k17x3x3,b3,p1",
    "17 to 65 channels": "i17x9x7,k65x3x3,b2",
    "65 to 1 channels": "i65x7x9,k1x3x3,b2,p1",
    "stride with remainder": "i4x12x11,k6x3x3,b2,s3x2",
    "remainder above the padding": "i4x15x14,k6x2x3,b2,s5x4,p1",
    "stride above the kernel": "i4x13x13,k6x1x2,b2,s3",
    "kernel as large as the image": "i8x9x7,k6x9x7,b3",
    "kernel larger than the image": "i8x3x3,k6x5x5,b2,p2",
    "padding above the kernel": "i4x5x6,k3x2x2,b2,p3x2",
    "padded 1x1": "i4x5x6,k3x1x1,b2,p2",
    "padded, strided 1x1": "i4x6x6,k3x1x1,b2,s2,p1",
    "stride and dilation": "i6x17x16,k9x3x3,b2,s2x3,p2,d3x2,g3",
    "more filters a group": "i6x9x9,k12x3x3,b2,s2,p1,g6",
    "a row": "i5x1x31,k7x1x5,b2,p0x2",
    "even kernel": "i5x10x10,k7x4x2,b2,p1",
}
PROBLEMS = {name: parse_conv(text) for name, text in (NETWORKS | AWKWARD).items()}
ROWS = [
    pytest.param(
        name, catalogue, alternative, id=f"{catalogue.direction}-{alternative.name}-{name}"
    )
    for name, problem in PROBLEMS.items()
    for catalogue in PASSES
    for alternative in catalogue.applying(problem._replace(accuracy="relaxed"))
]


@pytest.fixture(autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One, or as many as the test asks for: on a busy machine two wait for each other most of the
    time."""
    before = torch.get_num_threads()
    torch.set_num_threads(getattr(request, "param", 1))
    yield
    torch.set_num_threads(before)


# One test has all problems of an alternative: with a test for each, pytest took more time than the
# kernels.
BY_ALTERNATIVE: dict[str, list[tuple[str, Conv2dPass, Pass]]] = {}
for row in ROWS:
    _, one, other = row.values
    BY_ALTERNATIVE.setdefault(f"{one.direction}-{other.name}", []).append(row.values)


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["zero mean", "relu"])
@pytest.mark.parametrize("family", BY_ALTERNATIVE)
def test_float32_keeps_its_promise(family: str, kind: str, every: int) -> None:
    rows = BY_ALTERNATIVE[family]
    for row in rows[list(BY_ALTERNATIVE).index(family) % min(every, len(rows)) :: every]:
        _assert_its_promise(*row, kind)


def _assert_its_promise(name: str, catalogue: Conv2dPass, alternative: Pass, kind: str) -> None:
    problem = PROBLEMS[name]._replace(bias=True)
    result = call(catalogue, alternative, operands(problem, kind), problem)
    assert_within(
        result, reference(catalogue.direction, problem, kind), catalogue.bound(alternative, problem)
    )


SHARED = ("VGG16 conv5", "ResNet stem", "ResNeXt grouped", "GoogLeNet 5x5")


@pytest.mark.long(every=5)
@pytest.mark.parametrize("threads", [2], indirect=True)
@pytest.mark.parametrize(
    ("name", "catalogue", "alternative"), [row for row in ROWS if row.values[0] in SHARED]
)
def test_float32_keeps_its_promise_on_two_threads(
    name: str, catalogue: Conv2dPass, alternative: Pass
) -> None:
    _assert_its_promise(name, catalogue, alternative, "relu")


@pytest.mark.parametrize(
    ("name", "catalogue", "alternative"),
    [
        row
        for row in ROWS
        if row.values[0] in AWKWARD
        and row.values[2].can_run(PROBLEMS[row.values[0]]._replace(dtype="float64"))
    ],
)
def test_float64_keeps_the_same_promise_in_its_own_units(
    name: str, catalogue: Conv2dPass, alternative: Pass
) -> None:
    # Sums of small integers are exact, so that the float64 reference is the true result.
    problem = PROBLEMS[name]._replace(dtype="float64", bias=True)
    result = call(catalogue, alternative, operands(problem, "integers"), problem)
    assert result.dtype == torch.float64
    assert_within(
        result,
        reference(catalogue.direction, problem, "integers"),
        catalogue.bound(alternative, problem),
    )


@pytest.mark.parametrize("name", list(AWKWARD))
def test_the_reference_agrees_with_the_definition(name: str) -> None:
    problem = PROBLEMS[name]
    tensors = operands(problem, "integers")
    weight, groups = tensors["weight"].double(), problem.groups
    (pad_h, pad_w), (stride_h, stride_w), (step_h, step_w) = (
        problem.padding,
        problem.stride,
        problem.dilation,
    )
    n, k, p, q = problem.output_shape
    _, c, r, s = problem.weight_shape
    padded = torch.zeros(
        n, c * groups, problem.input_shape[2] + 2 * pad_h, problem.input_shape[3] + 2 * pad_w
    ).double()
    padded[:, :, pad_h : padded.shape[2] - pad_h, pad_w : padded.shape[3] - pad_w] = tensors[
        "input"
    ]
    expected = torch.zeros(n, k, p, q).double()
    for group in range(groups):
        filters, channels = (
            slice(group * k // groups, (group + 1) * k // groups),
            slice(group * c, (group + 1) * c),
        )
        for i in range(r):
            for j in range(s):
                rows = slice(i * step_h, i * step_h + stride_h * (p - 1) + 1, stride_h)
                columns = slice(j * step_w, j * step_w + stride_w * (q - 1) + 1, stride_w)
                read = padded[:, channels, rows, columns]
                expected[:, filters] += torch.einsum(
                    "nchw,kc->nkhw", read, weight[filters, :, i, j]
                )
    assert torch.equal(reference("forward", problem, "integers"), expected)
    # The gradients are the adjoints of the forward pass: <y, g> = <x, dx> = <w, dw>.
    inner = (expected * tensors["grad_output"]).sum()
    assert (reference("input gradient", problem, "integers") * tensors["input"]).sum() == inner
    assert (reference("weight gradient", problem, "integers") * weight).sum() == inner


@pytest.mark.parametrize(
    "name", [name for name, problem in PROBLEMS.items() if shared_im2row.supports(problem)]
)
def test_shared_im2row_keeps_its_promise(name: str) -> None:
    problem = PROBLEMS[name]._replace(bias=True)
    tensors = operands(problem, "relu")
    output, lowered = shared_im2row.forward(
        tensors["input"], tensors["weight"], tensors["bias"], problem
    )
    gradient = shared_im2row.weight_gradient(lowered, tensors["grad_output"], problem)
    row = FORWARD.rows[0]
    assert_within(output, reference("forward", problem, "relu"), FORWARD.bound(row, problem))
    assert_within(
        gradient, reference("weight gradient", problem, "relu"), WEIGHT_GRADIENT.bound(row, problem)
    )


@pytest.mark.parametrize(
    "name", [name for name, problem in PROBLEMS.items() if shared_im2row.supports(problem)]
)
def test_the_lowered_matrix_survives_later_changes_of_the_input(name: str) -> None:
    problem = PROBLEMS[name]
    for memory_format in (torch.contiguous_format, torch.channels_last):
        image = operands(problem, "integers")["input"].clone(memory_format=memory_format)
        _, lowered = shared_im2row.forward(
            image, operands(problem, "integers")["weight"], None, problem
        )
        before = lowered.clone()
        image.zero_()
        assert torch.equal(lowered, before)


@pytest.mark.parametrize("catalogue", PASSES, ids=lambda catalogue: catalogue.direction)
def test_an_empty_batch_is_left_to_pytorch(catalogue: Conv2dPass) -> None:
    problem = ConvProblem((0, 3, 8, 8), (4, 3, 3, 3))
    assert [alternative.name for alternative in catalogue.applying(problem)] == ["as is"]
    tensors = operands(problem, "zero mean")
    result = call(catalogue, catalogue.rows[0], tensors, problem)
    assert torch.equal(result, pytorch(catalogue.direction, tensors, problem))


def test_the_comparison_fails_on_nan_and_on_errors_above_the_bound() -> None:
    expected = torch.ones(4, dtype=torch.float64)
    bound = ErrorBound(rms=1e-6, maximum=1e-5)
    assert_within(expected.float(), expected, bound)
    for wrong in (math.nan, 1 + 3e-6, math.inf):
        with pytest.raises(AssertionError, match="above the promised"):
            assert_within(torch.tensor([1.0, 1.0, 1.0, wrong]), expected, bound)


def test_originals_are_called_and_the_dispatcher_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever reaches the dispatcher's convolution from inside an alternative would call an
    # override without end.
    problem = parse_conv("i4x9x9,k6x3x3,b2,p1,g2")
    tensors = operands(problem, "integers")
    expected = {
        catalogue.direction: pytorch(catalogue.direction, tensors, problem) for catalogue in PASSES
    }
    kernels = {
        name: torch.library.get_kernel(f"aten::{name}", "CPU")
        for name in ("convolution", "convolution_backward")
    }
    assert kernels
    library = torch.library.Library("aten", "IMPL")
    calls: list[str] = []

    def refuse(*_: object) -> None:
        raise AssertionError("an alternative reached the dispatcher")

    overrides = {
        name: lambda keyset, *arguments, name=name: calls.append(name) or refuse()
        for name in kernels
    }
    originals = type(ORIGINALS)(
        lambda *arguments: kernels["convolution"].call_boxed(CPU_KEYS, *arguments),
        lambda *arguments: kernels["convolution_backward"].call_boxed(CPU_KEYS, *arguments),
    )
    for name, override in overrides.items():
        library.impl(name, override, "CPU", with_keyset=True)
    monkeypatch.setattr("torch_convolution_oracle.ORIGINALS", originals)
    try:
        with torch.inference_mode():
            results = {
                (catalogue.direction, alternative.name): call(
                    catalogue, alternative, tensors, problem
                )
                for catalogue in PASSES
                for alternative in catalogue.applying(problem)
            }
            with pytest.raises(AssertionError, match="reached the dispatcher"):
                pytorch("forward", tensors, problem)
    finally:
        library._destroy()
    assert calls == ["convolution"]
    for (direction, _), result in results.items():
        torch.testing.assert_close(result, expected[direction], rtol=0, atol=1e-3)


CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
