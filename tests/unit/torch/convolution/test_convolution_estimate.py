"""Alternatives excluded by estimates: never a known winner, and many of the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bestof.kernels import has_wide_vectors, isa
from bestof.torch.ops.convolution import conv2d_pass, estimate, shared_im2row
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.passes import FORWARD, INPUT_GRADIENT, PASSES, WEIGHT_GRADIENT
from bestof.torch.ops.convolution.problem import parse_conv
from bestof.torch.ops.memory_format import Layout

RESULTS = Path(__file__).parents[4] / "docs" / "results" / "convolution.md"
_ROW = re.compile(r"\| (i\d\S+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|")
WINNERS = [
    (row[1], catalogue, cell.partition(",")[0].strip())
    for row in _ROW.finditer(RESULTS.read_text(encoding="utf-8"))
    for catalogue, cell in zip(PASSES, row.groups()[1:], strict=True)
]


def test_the_table_of_winners_was_read() -> None:
    assert len(WINNERS) >= 42
    assert {winner for _, _, winner in WINNERS} >= {
        "as is",
        "fft",
        "im2col",
        "im2row",
        "swap: forward",
        "native winograd4",
    }


@pytest.mark.parametrize(("notation", "catalogue", "winner"), WINNERS)
def test_measured_winners_are_not_left_out(notation: str, catalogue: object, winner: str) -> None:
    assert catalogue in PASSES
    problem = parse_conv(notation)._replace(threads=2)
    for one in PASSES:
        if one is catalogue and winner in {row.name for row in one.applying(problem)}:
            assert winner in one.promising(problem)


# The lowered matrix of 64 images is beyond its limit of memory, so there im2row does not apply. FFT
# applies only there.
@pytest.mark.parametrize(
    ("batch", "hopeless"), [(16, {"im2row", "im2col"}), (64, {"fft"})], ids=["matrices", "spectra"]
)
@pytest.mark.parametrize("catalogue", PASSES, ids=lambda one: one.direction)
def test_the_hopeless_are_left_out(catalogue: Conv2dPass, batch: int, hopeless: set[str]) -> None:
    problem = parse_conv(f"i64x32x32,k64x3x3,b{batch},p1")
    left_out = {row.name for row in catalogue.applying(problem)} - catalogue.promising(problem)
    assert left_out >= hopeless
    assert {"as is", "native winograd4"} <= catalogue.promising(problem)


VGG16 = (
    "i64x32x32,k64x3x3,b64,p1",
    "i64x16x16,k128x3x3,b64,p1",
    "i128x16x16,k128x3x3,b64,p1",
    "i128x8x8,k256x3x3,b64,p1",
    "i256x8x8,k256x3x3,b64,p1",
    "i256x4x4,k512x3x3,b64,p1",
    "i512x4x4,k512x3x3,b64,p1",
)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("notation", VGG16)
def test_beside_winograd_pytorch_as_is_stands_for_all_that_multiplies_everything(
    notation: str, layout: Layout
) -> None:
    if not has_wide_vectors():
        pytest.skip(f"the rule is for AVX2 and AVX-512; these kernels are {isa()}")
    problem = parse_conv(notation)._replace(threads=2, input_layout=layout, weight_layout=layout)
    for catalogue in PASSES:
        assert catalogue.promising(problem) == {"as is", "native winograd2", "native winograd4"}


@pytest.mark.usefixtures("known_onednn")
def test_winograd_excludes_no_alternative_unless_it_is_ahead() -> None:
    few = parse_conv(
        "i3x224x224,k64x3x3,b64,p1"
    )  # by the estimate it wins the gradient of the input, and never did
    assert {"im2row", "channels last", "native convgemm"} <= INPUT_GRADIENT.promising(few)
    # Two by two pixels leave F(4) a ninth of its tile, and a forward convolution takes half of
    # PyTorch's time.
    small = parse_conv("i512x2x2,k512x3x3,b64,p1")
    assert {"swap: forward", "im2row", "channels last"} <= WEIGHT_GRADIENT.promising(small)
    near = parse_conv("i32x56x56,k32x3x3,b8,p1")
    assert "swap: forward" in INPUT_GRADIENT.promising(near)


def test_a_kernel_without_vectors_excludes_no_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv2d_pass, "has_wide_vectors", lambda: False)
    problem = parse_conv(
        "i64x32x32,k64x3x3,b63,p1"
    )  # no problem of another test, whose answer is remembered
    assert "channels last" in FORWARD.promising(problem)


def test_weights_that_are_read_again_for_every_image_count() -> None:
    """64 products of 512 x 4608 by 4608 x 4 took 95 and 150 ms where the best took 5."""
    problem = parse_conv("i512x2x2,k512x3x3,b64,p1")
    for catalogue in PASSES:
        assert "im2col" not in catalogue.promising(problem)
    assert "im2col" in INPUT_GRADIENT.promising(parse_conv("i3x32x32,k64x3x3,b64,p1"))


@pytest.mark.parametrize("catalogue", PASSES, ids=lambda one: one.direction)
def test_nothing_is_left_out_where_trials_cost_nothing(catalogue: object) -> None:
    problem = parse_conv("i4x8x8,k4x3x3,b2,p1")
    for one in PASSES:
        if one is catalogue:
            assert one.promising(problem) == {row.name for row in one.applying(problem)}


@pytest.mark.parametrize("notation", sorted({notation for notation, _, _ in WINNERS}))
def test_estimates_grow_with_the_batch(notation: str) -> None:
    small = parse_conv(notation)
    (n, *rest) = small.input_shape
    large = small._replace(input_shape=(2 * n, *rest))  # type: ignore[arg-type]
    for one in PASSES:
        for row in one.applying(small):
            if row.estimate is not None:
                assert 0 < row.estimate(small) < row.estimate(large) < 2.01 * row.estimate(small)


def test_sharing_is_searched_only_where_im2row_is_near_the_best() -> None:
    apart = {
        notation: FORWARD.cheapest(parse_conv(notation))
        + WEIGHT_GRADIENT.cheapest(parse_conv(notation))
        for notation in ("i64x32x32,k64x3x3,b64,p1", "i256x6x6,k256x5x5,b64")
    }
    ratios = [
        shared_im2row.estimate(parse_conv(notation)) / cheapest
        for notation, cheapest in apart.items()
    ]
    assert ratios[0] > estimate.SHARING_MARGIN > 0
    assert ratios[1] < ratios[0]


def test_few_channels_cost_the_gradient_of_the_input_as_many_as_a_vector_has() -> None:
    problem = parse_conv("i3x64x64,k128x7x7,b64")
    assert estimate.direct_input_gradient(problem) > 2 * estimate.direct(problem)


def test_im2col_pays_for_both_conversions_in_channels_last() -> None:
    """It took 6 to 7 times as is on VGG16's first layer there."""
    first = parse_conv("i3x32x32,k64x3x3,b64,p1")
    last = first._replace(input_layout="channels_last", weight_layout="channels_last")
    for catalogue in (FORWARD, WEIGHT_GRADIENT):
        assert "im2col" in catalogue.promising(first)
        assert "im2col" not in catalogue.promising(last)


def test_native_weight_gradients_want_channels_for_a_vector() -> None:
    for layout in ("channels_first", "channels_last"):
        few = parse_conv("i3x32x32,k64x3x3,b64,p1")._replace(
            input_layout=layout, weight_layout=layout
        )  # type: ignore[arg-type]
        assert not any(name.startswith("native") for name in WEIGHT_GRADIENT.promising(few))
        assert "native convgemm" in FORWARD.promising(few)
    assert "native convgemm" in WEIGHT_GRADIENT.promising(parse_conv("i16x32x32,k64x3x3,b64,p1"))
    assert "native convgemm" in WEIGHT_GRADIENT.promising(parse_conv("i96x56x56,k96x7x7,b2,p3,g96"))
