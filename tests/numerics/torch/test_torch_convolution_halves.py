"""bfloat16 and float16 convolutions by every alternative against float64: sums in float32, one
rounding at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from test_torch_convolution import AWKWARD, NETWORKS
from torch_convolution_oracle import ORIGINALS, assert_within, call, operands, reference

from bestof.torch.ops.bound import BFLOAT16_INSIDE, ROUNDED, ErrorBound
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.packed_weights import PackedWeightsCache
from bestof.torch.ops.convolution.passes import FORWARD, PASSES
from bestof.torch.ops.convolution.problem import parse_conv
from bestof.torch.ops.onednn import has_bfloat16

PROBLEMS = {
    f"{name} {dtype}": parse_conv(text)._replace(dtype=dtype)
    for dtype in ("bfloat16", "float16")
    for name, text in (NETWORKS | AWKWARD).items()
}
PYTORCHS_SUMS = {"as is", "channels last"}
needs_bfloat16 = pytest.mark.skipif(
    not has_bfloat16(),
    reason="PyTorch's kernels may round partial sums to bfloat16 on a processor without AVX-512",
)
ROWS = [
    pytest.param(
        name,
        catalogue,
        alternative,
        id=f"{catalogue.direction}-{alternative.name}-{name}",
        marks=[needs_bfloat16] if alternative.name in PYTORCHS_SUMS else [],
    )
    for name, problem in PROBLEMS.items()
    for catalogue in PASSES
    for alternative in catalogue.applying(problem)
    if problem.dtype == "bfloat16" or alternative.name not in PYTORCHS_SUMS  # may sum in float16
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine two wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


FAMILIES = dict.fromkeys(row.values[1:] for row in ROWS)


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("catalogue", "alternative"),
    [
        pytest.param(
            catalogue,
            alternative,
            id=f"{catalogue.direction}-{alternative.name}",
            marks=[needs_bfloat16] if alternative.name in PYTORCHS_SUMS else [],
        )
        for catalogue, alternative in FAMILIES
    ],
)
def test_each_row_keeps_its_promise(catalogue: Conv2dPass, alternative: Pass, every: int) -> None:
    rows = [row.values[0] for row in ROWS if row.values[1:] == (catalogue, alternative)]
    for name in rows[::every]:
        problem = PROBLEMS[name]._replace(bias=True)
        result = call(catalogue, alternative, operands(problem, "relu"), problem)
        assert result.dtype == getattr(torch, problem.dtype)
        assert_within(
            result,
            reference(catalogue.direction, problem, "relu"),
            catalogue.bound(alternative, problem),
        )


@pytest.mark.parametrize(
    ("name", "catalogue", "alternative"),
    [
        row
        for row in ROWS
        if row.values[0].rpartition(" ")[0] in AWKWARD and "winograd" not in row.values[2].name
    ],
)
def test_a_result_is_the_exact_one_rounded_once(
    name: str, catalogue: Conv2dPass, alternative: Pass
) -> None:
    # Integers up to 4 are exact in both types, and their sums in float32: what differs was rounded
    # twice, or cut off.
    problem = PROBLEMS[name]._replace(bias=True)
    result = call(catalogue, alternative, operands(problem, "integers"), problem)
    expected = reference(catalogue.direction, problem, "integers")
    assert torch.equal(result, expected.to(result.dtype))


def test_one_rounding_is_what_the_bound_says() -> None:
    exact = torch.randn(1_000_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_within(exact.to(torch.bfloat16), exact, ROUNDED)
    worst = torch.tensor([1 + 2.0**-8], dtype=torch.float64)  # half way between two neighbours
    assert_within(worst.to(torch.bfloat16), worst, ROUNDED)
    with pytest.raises(AssertionError, match="above the promised"):
        assert_within(
            worst.to(torch.bfloat16), worst, ErrorBound(0.99 * ROUNDED.rms, ROUNDED.maximum)
        )


@needs_bfloat16
@pytest.mark.parametrize("name", ["VGG16 conv3_1 bfloat16", "ResNet 1x1 bfloat16"])
@pytest.mark.parametrize("catalogue", PASSES, ids=lambda one: one.direction)
def test_bfloat16_inside_is_for_relaxed_accuracy_only(name: str, catalogue: Conv2dPass) -> None:
    problem = PROBLEMS[name]._replace(dtype="float32")
    small = PROBLEMS["ResNet 1x1 bfloat16"]._replace(dtype="float32")
    inside = {
        row.name for row in catalogue.rows if row.bound and row.bound(small) == BFLOAT16_INSIDE
    }
    assert inside
    assert inside.isdisjoint(row.name for row in catalogue.applying(problem))
    assert inside.isdisjoint(
        row.name for row in catalogue.applying(problem._replace(accuracy="exact"))
    )
    relaxed = problem._replace(accuracy="relaxed")
    by_name = {row.name: row for row in catalogue.applying(relaxed)}
    assert "bfloat16" in by_name
    # So much more exact would be float32 inside after all.
    result = call(catalogue, by_name["bfloat16"], operands(relaxed, "zero mean"), relaxed)
    expected = reference(catalogue.direction, relaxed, "zero mean")
    assert result.dtype == torch.float32
    with pytest.raises(AssertionError, match="above the promised"):
        assert_within(
            result, expected, ErrorBound(BFLOAT16_INSIDE.rms / 4, BFLOAT16_INSIDE.maximum)
        )


def test_weights_of_bfloat16_that_stand_still_are_packed_once_and_watched() -> None:
    problem = PROBLEMS["VGG16 conv1_2 bfloat16"]._replace(frozen=True)
    weight = operands(problem, "integers")["weight"].clone()
    weight[5] = 64.0
    cache = PackedWeightsCache(1 << 24)
    packed = cache.get(weight, "winograd4", 1)
    assert packed is not None
    assert cache.get(weight, "winograd4", 1) is packed
    # Behind the version's back, and far below what a sum of the filter in bfloat16 would show:
    # 27,648, by steps of 128.
    weight.data[5, 3, 1, 1] = 65.0
    assert cache.get(weight, "winograd4", 1) is not packed


def test_packed_weights_give_the_same_results() -> None:
    problem = PROBLEMS["VGG16 conv1_2 bfloat16"]._replace(frozen=True)
    tensors = operands(problem, "relu")
    by_name = {row.name: row for row in FORWARD.applying(problem)}
    originals = type(ORIGINALS)(
        ORIGINALS.convolution, ORIGINALS.convolution_backward, PackedWeightsCache(1 << 24)
    )
    names = {
        "float32 native winograd4",
        "float32 native convgemm",
        "native bfloat16",
    } & by_name.keys()
    for name in names:
        got = by_name[name].function(originals, problem, tensors["input"], tensors["weight"], None)
        assert torch.equal(
            got, call(FORWARD, by_name[name], tensors, problem._replace(frozen=False))
        )
    assert len(originals.packed) == len(names)


@pytest.mark.parametrize("catalogue", PASSES, ids=lambda one: one.direction)
def test_what_float16_cannot_hold_is_infinite_in_every_row(catalogue: Conv2dPass) -> None:
    problem = PROBLEMS["VGG16 conv3_1 float16"]
    given = {name: 300 * one for name, one in operands(problem, "relu").items()}
    exact = call(
        catalogue,
        catalogue.rows[0],
        {name: one.double() for name, one in given.items()},
        problem._replace(dtype="float64"),
    )
    expected = exact.to(torch.float16)
    assert bool(expected.isinf().any())
    for alternative in catalogue.applying(problem)[1:]:
        got = call(catalogue, alternative, given, problem)
        differ = got.isfinite() != expected.isfinite()
        # Only where the result lies at the largest number of float16.
        assert bool(((exact[differ].abs() - 65504).abs() < 64).all()), alternative.name
