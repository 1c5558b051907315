"""The three catalogues, and the bounds of their alternatives."""

from __future__ import annotations

from math import sqrt

import pytest

from bestof.kernels import algorithms, conv2d_algorithms, isa
from bestof.torch.ops.bound import DIRECT, ErrorBound, summation_bound
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.passes import FORWARD, INPUT_GRADIENT, PASSES, WEIGHT_GRADIENT
from bestof.torch.ops.convolution.problem import ConvProblem, parse_conv
from bestof.torch.ops.onednn import has_bfloat16


def names(catalogue: Conv2dPass, problem: ConvProblem) -> list[str]:
    return [alternative.name for alternative in catalogue.applying(problem)]


@pytest.mark.usefixtures("known_onednn")
def test_the_order_of_the_tables() -> None:
    problem = parse_conv("i4x9x9,k6x3x3,p1")
    own = ["native convgemm", "native winograd2", "native winograd4"]
    assert names(FORWARD, problem) == [
        *("as is", "channels last", "im2row", "im2col", "fft"),
        *("swap: weight gradient", "swap: input gradient", "native direct"),
        *own,
    ]
    for catalogue in (INPUT_GRADIENT, WEIGHT_GRADIENT):
        assert names(catalogue, problem) == [
            *("as is", "channels last", "im2row", "im2col", "fft", "swap: forward"),
            *own,
        ]


def test_every_algorithm_of_the_kernels_has_a_row_or_a_reason() -> None:
    # im2row is within 2 % of convgemm or behind it on every layer measured; F(6) is beyond the
    # accuracy of float32. That of bfloat16 has two rows under names of their own.
    left_out = {"im2row", "winograd6", "convgemm_bf16"}
    for catalogue, direction in zip(
        PASSES, ("forward", "backward_input", "backward_weight"), strict=True
    ):
        known = {
            row.name.removeprefix("native ")
            for row in catalogue.rows
            if row.name.startswith("native ")
        }
        offered = set()
        for groups, channels in ((1, 8), (8, 1)):
            shapes = (1, 9, 9, 8), (8, 3, 3, channels)
            offered |= set(
                conv2d_algorithms(*shapes, padding=1, groups=groups, direction=direction)
            )
        assert offered - left_out <= known


@pytest.mark.parametrize("catalogue", PASSES, ids=lambda catalogue: catalogue.direction)
def test_bfloat16_runs_pytorchs_kernels_or_in_float32(catalogue: Conv2dPass) -> None:
    problem = parse_conv("i16x9x9,k16x3x3")._replace(dtype="bfloat16")
    offered = names(catalogue, problem)
    assert offered[:2] == ["as is", "channels last"]
    others = [name for name in offered[2:] if not name.startswith("float32")]
    # PyTorch's product sums in float32 from AVX-512 on.
    has_product = catalogue is WEIGHT_GRADIENT and has_bfloat16()
    assert others[:1] == ["im2row"] if has_product else "im2row" not in others
    tiles = {f"native bfloat16 winograd{size}" for size in (2, 4, 6)}
    assert set(others) <= {"im2row", "native bfloat16", "native bfloat16 convgemm", *tiles}
    widens = "native bfloat16" if catalogue is FORWARD else "float32 native"
    assert f"{widens} convgemm" in offered
    fast = isa().endswith("_bf16") and catalogue is FORWARD
    assert ("native bfloat16" in offered) == fast
    winograd = "winograd4" if catalogue is WEIGHT_GRADIENT else "winograd6"
    assert {"float32", f"{widens} {winograd}"} <= set(offered)
    assert names(catalogue, problem._replace(accuracy="exact")) == ["as is"]


@pytest.mark.parametrize("catalogue", PASSES, ids=lambda catalogue: catalogue.direction)
def test_depthwise_bfloat16_is_converted_for_gradients_only(catalogue: Conv2dPass) -> None:
    problem = parse_conv("i8x9x9,k8x3x3,g8")._replace(dtype="bfloat16")
    offered = {name for name in names(catalogue, problem) if "depthwise" in name}
    forward = catalogue is FORWARD
    assert offered == {"native bfloat16 depthwise" if forward else "float32 native depthwise"}
    assert "native bfloat16 depthwise" not in names(catalogue, problem._replace(dtype="float32"))


@pytest.mark.parametrize("catalogue", PASSES, ids=lambda catalogue: catalogue.direction)
def test_float16_is_computed_between_conversions_by_what_bfloat16_is(
    catalogue: Conv2dPass,
) -> None:
    problem = parse_conv("i64x9x9,k32x3x3")
    of_float16 = set(names(catalogue, problem._replace(dtype="float16")))
    of_bfloat16 = set(names(catalogue, problem._replace(dtype="bfloat16")))
    assert {"float32", "float32 native convgemm", "float32 native winograd2"} <= of_float16
    assert not {name for name in of_float16 if "bfloat16" in name}
    widened = {name for name in of_bfloat16 if name.startswith("float32")}
    assert widened <= of_float16


@pytest.mark.parametrize("catalogue", PASSES, ids=lambda catalogue: catalogue.direction)
def test_inapplicable_algorithms_are_not_offered(catalogue: Conv2dPass) -> None:
    assert "fft" not in names(catalogue, parse_conv("i4x9x9,k6x3x3,s2"))
    assert "fft" not in names(catalogue, parse_conv("i4x9x9,k6x1x1"))
    assert "fft" not in names(catalogue, parse_conv("i64x112x112,k128x3x3,b4,p1"))
    assert "fft" in names(catalogue, parse_conv("i16x64x64,k16x31x31,b16,p15"))
    assert "im2row" not in names(catalogue, parse_conv("i64x224x224,k64x3x3,b64,p1"))
    assert "channels last" not in names(
        catalogue, parse_conv("i4x9x9,k6x3x3")._replace(input_layout="channels_last")
    )
    assert "swap: input gradient" not in names(catalogue, parse_conv("i4x9x9,k6x3x3,p3"))


def test_spreading_a_gradient_is_offered_up_to_a_fourfold_work() -> None:
    assert "swap: forward" in names(INPUT_GRADIENT, parse_conv("i4x9x9,k6x3x3,s2"))
    assert "swap: forward" not in names(INPUT_GRADIENT, parse_conv("i4x9x9,k6x3x3,s4"))


def test_bounds_grow_with_the_terms_and_the_unit_of_the_dtype() -> None:
    by_name = {alternative.name: alternative for alternative in FORWARD.rows}
    small, large = parse_conv("i512x9x9,k6x3x3"), parse_conv("i2048x9x9,k6x3x3")
    error = algorithms()["convgemm"].error
    promised = ErrorBound(error.rms, error.maximum)
    assert FORWARD.bound(by_name["native convgemm"], small) == promised
    assert FORWARD.bound(by_name["native convgemm"], large).rms == pytest.approx(2 * promised.rms)
    assert FORWARD.bound(by_name["fft"], large).maximum == pytest.approx(4e-5)
    assert FORWARD.bound(by_name["fft"], small._replace(dtype="float64")).rms == pytest.approx(
        2e-6 * 2.0**-29
    )
    row = next(one for one in WEIGHT_GRADIENT.rows if one.name == "fft")
    assert WEIGHT_GRADIENT.bound(
        row, small._replace(input_shape=(2048, 4, 9, 9))
    ).rms == pytest.approx(4e-6)


@pytest.mark.parametrize("name", ["im2row", "im2col"])
def test_pytorchs_products_promise_what_sums_term_by_term_keep(name: str) -> None:
    """The weight gradient of 32 images of 33x33 sums 34,848 products, and erred by 3e-6 of its
    rms."""
    (row,) = (one for one in WEIGHT_GRADIENT.rows if one.name == name)
    problem = parse_conv("i33x33x33,k2x4x4,b32")
    assert WEIGHT_GRADIENT.bound(row, problem) == summation_bound(32 * 30 * 30, "float32")


def test_sums_taken_term_by_term_promise_what_their_rounding_keeps() -> None:
    assert summation_bound(9, "float32") == DIRECT
    assert summation_bound(4608, "float32").rms == pytest.approx(2.0**-24 * sqrt(768))
    assert FORWARD.bound(FORWARD.rows[0], parse_conv("i512x9x9,k6x3x3")) == summation_bound(
        4608, "float32"
    )


def test_gradients_in_bfloat16_of_images_no_wider_than_the_stride_stay_with_pytorch() -> None:
    """There oneDNN's read memory that nobody wrote."""
    wide = parse_conv("i16x64x3,k16x3x3,b16,s2,p1")._replace(accuracy="relaxed")
    narrow = parse_conv("i16x64x1,k16x3x3,b16,s2,p1")._replace(accuracy="relaxed")
    if "bfloat16" in names(WEIGHT_GRADIENT, wide):
        assert "bfloat16" not in names(WEIGHT_GRADIENT, narrow)
    assert "channels last" in names(WEIGHT_GRADIENT, narrow)
    assert "channels last" in names(WEIGHT_GRADIENT, wide._replace(dtype="bfloat16"))
    assert "channels last" not in names(WEIGHT_GRADIENT, narrow._replace(dtype="bfloat16"))
