"""What is left out before it is tried: nothing that was ever seen to win, and much of the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bestof.torch.convolution import estimate
from bestof.torch.convolution.catalogue import CATALOGUES, FORWARD, WEIGHT_GRADIENT
from bestof.torch.convolution.problem import parse_conv

RESULTS = Path(__file__).parents[4] / "docs" / "results" / "convolution.md"
_ROW = re.compile(r"\| (i\d\S+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|")
WINNERS = [
    (row[1], catalogue, cell.partition(",")[0].strip())
    for row in _ROW.finditer(RESULTS.read_text(encoding="utf-8"))
    for catalogue, cell in zip(CATALOGUES, row.groups()[1:], strict=True)
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
def test_what_was_measured_to_win_is_not_left_out(notation: str, catalogue: object, winner: str) -> None:
    assert catalogue in CATALOGUES
    problem = parse_conv(notation)._replace(threads=2)
    for one in CATALOGUES:
        if one is catalogue and winner in {row.name for row in one.applying(problem)}:
            assert winner in one.promising(problem)


@pytest.mark.parametrize("catalogue", CATALOGUES, ids=lambda one: one.direction)
def test_the_hopeless_are_left_out(catalogue: object) -> None:
    problem = parse_conv("i64x32x32,k64x3x3,b64,p1")
    for one in CATALOGUES:
        if one is catalogue:
            left_out = {row.name for row in one.applying(problem)} - one.promising(problem)
            assert left_out >= {"fft", "im2row", "im2col"}
            assert {"as is", "native winograd4"} <= one.promising(problem)


@pytest.mark.parametrize("catalogue", CATALOGUES, ids=lambda one: one.direction)
def test_nothing_is_left_out_where_trials_cost_nothing(catalogue: object) -> None:
    problem = parse_conv("i4x8x8,k4x3x3,b2,p1")
    for one in CATALOGUES:
        if one is catalogue:
            assert one.promising(problem) == {row.name for row in one.applying(problem)}


@pytest.mark.parametrize("notation", sorted({notation for notation, _, _ in WINNERS}))
def test_estimates_grow_with_the_batch(notation: str) -> None:
    small = parse_conv(notation)
    (n, *rest) = small.input_shape
    large = small._replace(input_shape=(2 * n, *rest))  # type: ignore[arg-type]
    for one in CATALOGUES:
        for row in one.applying(small):
            if row.estimate is not None:
                assert 0 < row.estimate(small) < row.estimate(large) < 2.01 * row.estimate(small)


def test_sharing_is_searched_only_where_im2row_is_near_the_best() -> None:
    apart = {
        notation: FORWARD.cheapest(parse_conv(notation)) + WEIGHT_GRADIENT.cheapest(parse_conv(notation))
        for notation in ("i64x32x32,k64x3x3,b64,p1", "i256x6x6,k256x5x5,b64")
    }
    ratios = [estimate.shared_matrix(parse_conv(notation)) / cheapest for notation, cheapest in apart.items()]
    assert ratios[0] > estimate.SHARING_MARGIN > 0
    assert ratios[1] < ratios[0]


def test_few_channels_cost_the_gradient_of_the_input_as_many_as_a_vector_has() -> None:
    problem = parse_conv("i3x64x64,k128x7x7,b64")
    assert estimate.as_is_input_gradient(problem) > 2 * estimate.as_is(problem)
