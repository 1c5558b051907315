"""The work of a line is counted as a naive loop counts it."""

from __future__ import annotations

import itertools

import pytest

from bestof.profile.log import read_lines
from bestof.profile.verbose.line import Line
from bestof.profile.verbose.work import bytes_of, flops_of, taps


def convolution(
    problem: str, primitive: str = "convolution", aux: str = "", dtype: str = "f32"
) -> Line:
    text = (
        f"onednn_verbose,v1,primitive,exec,cpu,{primitive},jit,forward_training,"
        f"src:{dtype}::blocked:a::f0 wei:{dtype}::blocked:a::f0 "
        f"dst:{dtype}::blocked:a::f0,,{aux},{problem},1"
    )
    (line,) = read_lines([text]).lines
    return line


@pytest.mark.parametrize(
    ("stride", "dilation", "pad"), [*itertools.product((1, 2, 3), (0, 1), (0, 1, 3))]
)
def test_taps_on_the_padding_are_not_counted(stride: int, dilation: int, pad: int) -> None:
    size, window = 7, 3
    results = (size + 2 * pad - (dilation + 1) * (window - 1) - 1) // stride + 1
    padded = [False] * pad + [True] * size + [False] * pad
    counted = sum(
        padded[place * stride + tap * (dilation + 1)]
        for place in range(results)
        for tap in range(window)
    )
    assert taps(size, results, window, stride, dilation, pad) == counted


def test_a_convolution_counts_two_operations_a_tap() -> None:
    line = convolution("mb2_ic8oc16_ih5oh5kh3sh1dh0ph1_iw5ow5kw3sw1dw0pw1")
    # On each axis 5 results with 3 taps, less one tap at either edge.
    assert flops_of(line) == 2 * 2 * 8 * 16 * 13 * 13
    assert bytes_of(line) == 4 * (2 * 8 * 25 + 8 * 16 * 9 + 2 * 16 * 25)


def test_groups_share_no_channels() -> None:
    line = convolution("g4mb1_ic8oc16_ih5oh3kh3sh1dh0ph0_iw5ow3kw3sw1dw0pw0")
    assert flops_of(line) == 2 * 4 * (2 * 4) * 9 * 9


def test_a_deconvolution_spreads_its_input() -> None:
    # Each of 3 inputs reaches 3 of 5 results: what a convolution from 5 to 3 reads.
    forward = convolution("mb1_ic4oc4_ih5oh3kh3sh1dh0ph0_iw5ow3kw3sw1dw0pw0")
    back = convolution("mb1_ic4oc4_ih3oh5kh3sh1dh0ph0_iw3ow5kw3sw1dw0pw0", "deconvolution")
    assert flops_of(back) == flops_of(forward) > 0


def test_a_product_with_a_batch_is_counted() -> None:
    line = convolution("6x2x3:1x3x5:6x2x5", "matmul", dtype="bf16")
    assert flops_of(line) == 2 * 6 * 2 * 3 * 5
    assert bytes_of(line) == 2 * (6 * 2 * 3 + 3 * 5 + 6 * 2 * 5)


def test_an_inner_product_over_an_image_is_counted() -> None:
    assert flops_of(convolution("mb7ic3ih2iw2oc5", "inner_product")) == 2 * 7 * 3 * 4 * 5


def test_a_recurrent_cell_counts_its_gates() -> None:
    line = convolution(
        "l1t3mb2sic4slc5dhc4dic4", "rnn", "alg:vanilla_lstm direction:unidirectional_left2right"
    )
    # Four gates; each multiplies the input (5) and the state (4) into 4 outputs.
    assert flops_of(line) == 2 * 4 * 3 * 2 * 4 * (5 + 4)


def test_data_movement_has_bytes_and_no_operations() -> None:
    line = convolution("8x16x16x16", "reorder")
    assert flops_of(line) == 0
    assert bytes_of(line) == 3 * 4 * 8 * 16 * 16 * 16  # the fake reorder has three tensors


@pytest.mark.parametrize(
    "problem",
    [
        "g0mb1_ic8oc8_ih5oh3kh3sh1dh0ph0",
        "mb1_ic8oc8_ih5oh3kh3sh0dh0ph0",
        "mb1_ic8oc8_ih5oh3kh999999999999sh1dh0ph0",
        "mb1_oc8_ic" + "9" * 5000,
        "_".join(f"i{axis}{10**17}o{axis}{10**17}k{axis}131072" for axis in "dhw"),
    ],
)
def test_damaged_sizes_count_nothing(problem: str) -> None:
    line = convolution(problem)
    assert flops_of(line) == 0
    assert bytes_of(line) >= 0
