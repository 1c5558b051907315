"""The problem of a convolution, and its notation."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestof.errors import BestofError, InvalidArgument
from bestof.torch.ops.convolution.problem import ConvProblem, parse_conv


def test_the_problem_of_a_call() -> None:
    image = torch.empty(2, 6, 9, 8, dtype=torch.float64, memory_format=torch.channels_last)
    weight = torch.empty(4, 3, 3, 1, dtype=torch.float64)
    problem = ConvProblem.of(image, weight, True, [1, 2], [1, 0], [2, 1], 2)
    assert problem == ConvProblem(
        *((2, 6, 9, 8), (4, 3, 3, 1), True, (1, 2), (1, 0), (2, 1), 2),
        *("float64", "channels_last", "channels_first", ""),
        torch.get_num_threads(),
    )
    assert hash(problem) == hash(ConvProblem.of(image, weight, True, (1, 2), (1, 0), (2, 1), 2))
    backward = ConvProblem.of(
        image, weight, True, [1, 2], [1, 0], [2, 1], 2, torch.empty(problem.output_shape)
    )
    assert backward.grad_layout == "channels_first"


def test_it_holds_plain_values_only() -> None:
    problem = ConvProblem.of(
        torch.empty(1, 1, 3, 3), torch.empty(1, 1, 3, 3), False, [1, 1], [0, 0], [1, 1], 1
    )
    for value in problem:
        assert type(value) in (int, str, bool, tuple)
        if type(value) is tuple:
            assert {type(item) for item in value} == {int}


@pytest.mark.parametrize(
    "text",
    [
        "i3x64x64,k128x7x7,b64,s1,p0,d1,g1",
        "i128x16x16,k256x5x5,b64,s2,p2,d1,g1",
        "i6x17x31,k9x3x1,b1,s2x3,p1x0,d3x1,g3",
    ],
)
def test_the_notation_is_read_back(text: str) -> None:
    problem = parse_conv(text)
    assert problem.notation == text
    assert str(problem) == text
    assert problem.threads == torch.get_num_threads()


def test_the_notation_uses_pytorchs_defaults() -> None:
    assert parse_conv("k128x7x7, i3x64x64") == parse_conv("i3x64x64,k128x7x7,b1,s1,p0,d1,g1")
    assert parse_conv("i8x5x5,k4x3x3,g2").weight_shape == (4, 4, 3, 3)


def test_unusual_properties_are_written() -> None:
    problem = parse_conv("i3x8x8,k4x3x3")._replace(
        bias=True,
        dtype="float64",
        input_layout="channels_last",
        grad_layout="other",
    )
    assert str(problem) == (
        "i3x8x8,k4x3x3,b1,s1,p0,d1,g1 float64 bias input=channels_last gradient=other"
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "cannot read ''"),
        ("i3x8x8", "'k' is missing"),
        ("k3x8x8", "'i' is missing"),
        ("i3x8x8,k4x3x3,q7", "cannot read 'q7'"),
        ("i3x8x8,k4x3x3,s-1", "cannot read 's-1'"),
        ("i3x8x8,k4x3x3,", "cannot read ''"),
        ("i3x8,k4x3x3", "2 numbers in place of 3"),
        ("i3x8x8,k4x3x3,s1x2x3", "3 numbers in place of 1 or 2"),
        ("i3x8x8,k4x3x3,b1,b2", "given twice"),
        ("i3x8x8,k4x3x3,d0", "holds a zero"),
        ("i3x8x8,k4x3x3,g2", "2 groups do not divide 3 channels and 4 filters"),
        ("i3x8x8,k4x9x3", "exceeds the padded image"),
        ("i3x8x8,k4x3x3,d4", "exceeds the padded image"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_was_expected(text: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match="expected iCHANNELSxHEIGHTxWIDTH") as caught:
        parse_conv(text)
    assert complaint in str(caught.value)
    assert isinstance(caught.value, BestofError)


geometries = st.builds(
    ConvProblem,
    st.tuples(st.integers(1, 3), st.just(2), st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.integers(1, 3), st.just(2), st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
).filter(lambda problem: min(problem.output_size) > 0)


@settings(deadline=None, derandomize=True, database=None)
@given(problem=geometries)
def test_shape_and_flops_are_those_of_the_computation(problem: ConvProblem) -> None:
    # A convolution of ones counts, for each output, the products with an element inside the image.
    counts = torch.ops.aten.convolution(
        torch.ones(problem.input_shape).double(), torch.ones(problem.weight_shape).double(), None,
        problem.stride, problem.padding, problem.dilation, False, (0, 0), 1,
    )  # fmt: skip
    assert tuple(counts.shape) == problem.output_shape
    assert problem.flops == 2 * int(counts.sum())


def test_flops_of_known_layers() -> None:
    assert (
        parse_conv("i1x3x3,k1x3x3,p1").flops == 2 * 49
    )  # 4 corners see 4 elements, 4 edges 6, the middle 9
    assert parse_conv("i256x56x56,k64x1x1,b4").flops == 2 * 4 * 64 * 256 * 56 * 56
    assert parse_conv("i8x5x5,k8x3x3,g8").flops == 2 * 8 * 9 * 9


def test_results_are_channels_last_where_input_or_weight_are() -> None:
    plain = parse_conv("i4x8x8,k4x3x3")
    for image, weight, gradient in itertools.product(
        ("channels_first", "channels_last", "other"), repeat=3
    ):
        problem = plain._replace(input_layout=image, weight_layout=weight, grad_layout=gradient)
        assert problem.channels_last == ("channels_last" in (image, weight))
