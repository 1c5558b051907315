"""Convolutions of bfloat16 and float16 by every alternative against float64: sums in float32, one
rounding at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_torch_convolution import AWKWARD, NETWORKS
from torch import Tensor
from torch_convolution_oracle import ORIGINALS, assert_within, call, operands, reference

from bestof.torch.ops.bound import BFLOAT16_INSIDE, ROUNDED, ErrorBound
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.packed_weights import PackedWeightsCache
from bestof.torch.ops.convolution.passes import FORWARD, PASSES
from bestof.torch.ops.convolution.problem import parse_conv
from bestof.torch.ops.onednn import has_bfloat16, sums_in_float32

PROBLEMS = {
    (name, dtype): parse_conv(text)._replace(dtype=dtype)
    for dtype in ("bfloat16", "float16")
    for name, text in (NETWORKS | AWKWARD).items()
}
PYTORCHS_SUMS = {"as is", "channels last"}
needs_bfloat16 = pytest.mark.skipif(not has_bfloat16(), reason="no instructions for bfloat16 here")


def _marks(alternative: Pass, dtype: str) -> list[pytest.MarkDecorator]:
    rounds = alternative.name in PYTORCHS_SUMS and not sums_in_float32(dtype)
    return [pytest.mark.skip(reason=f"PyTorch may round partial sums to {dtype} here")][:rounds]


ROWS = [
    pytest.param(
        (name, dtype),
        catalogue,
        alternative,
        id=f"{catalogue.direction}-{alternative.name}-{name}-{dtype}",
        marks=_marks(alternative, dtype),
    )
    for (name, dtype), problem in PROBLEMS.items()
    for catalogue in PASSES
    for alternative in catalogue.applying(problem)
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine two wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that an alternative leaves unwritten are NaN."""
    empty = torch.empty

    def full_of_nan(*sizes: Any, **options: Any) -> Tensor:
        made = empty(*sizes, **options)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", full_of_nan)


FAMILIES = dict.fromkeys((row.values[0][1], *row.values[1:]) for row in ROWS)


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("dtype", "catalogue", "alternative"),
    [
        pytest.param(
            *family,
            id=f"{family[1].direction}-{family[2].name}-{family[0]}",
            marks=_marks(family[2], family[0]),
        )
        for family in FAMILIES
    ],
)
def test_a_row_keeps_its_promise(
    dtype: str, catalogue: Conv2dPass, alternative: Pass, every: int
) -> None:
    family = dtype, catalogue, alternative
    rows = [row.values[0] for row in ROWS if (row.values[0][1], *row.values[1:]) == family]
    for name in rows[::every]:
        problem = PROBLEMS[name]._replace(bias=True)
        result = call(catalogue, alternative, operands(problem, "relu"), problem)
        assert result.dtype == getattr(torch, dtype)
        assert_within(
            result,
            reference(catalogue.direction, problem, "relu"),
            catalogue.bound(alternative, problem),
        )


@pytest.mark.parametrize(
    ("name", "catalogue", "alternative"),
    [row for row in ROWS if row.values[0][0] in AWKWARD and "winograd" not in row.values[2].name],
)
def test_a_result_is_the_exact_one_rounded_once(
    name: tuple[str, str], catalogue: Conv2dPass, alternative: Pass
) -> None:
    # Integers up to 4 are exact in half types, and their sums in float32: what differs was rounded
    # twice, or cut off.
    problem = PROBLEMS[name]._replace(bias=True)
    result = call(catalogue, alternative, operands(problem, "integers"), problem)
    expected = reference(catalogue.direction, problem, "integers")
    assert torch.equal(result, expected.to(result.dtype))


@pytest.mark.parametrize("catalogue", PASSES, ids=lambda one: one.direction)
def test_sums_beyond_float16_are_infinite_as_those_of_pytorch(catalogue: Conv2dPass) -> None:
    problem = PROBLEMS["ResNet 1x1", "float16"]._replace(bias=True)
    huge = {name: 90 * tensor for name, tensor in operands(problem, "integers").items()}
    expected = call(catalogue, catalogue.rows[0], huge, problem)
    assert 0 < torch.isinf(expected).sum() < expected.numel()
    arguments = {
        "forward": (huge["input"], huge["weight"], huge["bias"]),
        "input gradient": (huge["grad_output"], huge["weight"]),
        "weight gradient": (huge["grad_output"], huge["input"]),
    }[catalogue.direction]
    for row in catalogue.applying(problem):
        got = call(catalogue, row, huge, problem)
        found = catalogue.compare(row, ORIGINALS, (problem, *arguments), expected, got)
        assert found.wrong is None, row.name
        # Where PyTorch sums in float16, its partial sums may be infinite before they cancel.
        assert found.reference_wrong is None or not sums_in_float32("float16"), row.name


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
@pytest.mark.parametrize("name", ["VGG16 conv3_1", "ResNet 1x1"])
@pytest.mark.parametrize("catalogue", PASSES, ids=lambda one: one.direction)
def test_bfloat16_inside_is_for_relaxed_accuracy_only(name: str, catalogue: Conv2dPass) -> None:
    problem = PROBLEMS[name, "bfloat16"]._replace(dtype="float32")
    small = PROBLEMS["ResNet 1x1", "bfloat16"]._replace(dtype="float32")
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
    problem = PROBLEMS["VGG16 conv1_2", "bfloat16"]._replace(frozen=True)
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
    problem = PROBLEMS["VGG16 conv1_2", "bfloat16"]._replace(frozen=True)
    tensors = operands(problem, "relu")
    by_name = {row.name: row for row in FORWARD.applying(problem)}
    originals = type(ORIGINALS)(
        ORIGINALS.convolution, ORIGINALS.convolution_backward, PackedWeightsCache(1 << 24)
    )
    names = {
        "native bfloat16 winograd4",
        "native bfloat16 convgemm",
        "native bfloat16",
    } & by_name.keys()
    for name in names:
        got = by_name[name].function(originals, problem, tensors["input"], tensors["weight"], None)
        assert torch.equal(
            got, call(FORWARD, by_name[name], tensors, problem._replace(frozen=False))
        )
    assert len(originals.packed) == len(names)
