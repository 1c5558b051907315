"""A candidate is confirmed by the order of its ratios, and not by chance."""

from __future__ import annotations

import random
from itertools import product

import pytest

from bestof.selection.policies.paired import LEAST_PAIRS, MOST_PAIRS, judge, speedup


@pytest.mark.parametrize("count", range(LEAST_PAIRS, MOST_PAIRS + 1))
def test_the_interval_holds_the_median_with_95_percent(count: int) -> None:
    # Each ratio is above the median with 1/2. Ratios 1..n in order: find the dropped ones, and
    # count the coin tosses that leave the median outside.
    found = speedup([float(one) for one in range(count)])
    assert found is not None
    dropped = int(found.low)
    assert found.high == count - 1 - dropped
    if count <= 12:
        outside = sum(min(sum(t), count - sum(t)) <= dropped for t in product((0, 1), repeat=count))
        assert outside / 2**count <= 0.05
        tighter = sum(
            min(sum(t), count - sum(t)) <= dropped + 1 for t in product((0, 1), repeat=count)
        )
        assert tighter / 2**count > 0.05  # no more could be dropped


def test_too_few_pairs_confirm_nothing() -> None:
    assert speedup([9.0] * (LEAST_PAIRS - 1)) is None
    assert judge([9.0] * (LEAST_PAIRS - 1)) is None


def test_a_clear_gain_and_a_clear_loss_end_early() -> None:
    assert judge([1.5] * LEAST_PAIRS) is True
    assert judge([0.7] * LEAST_PAIRS) is False


def test_one_disturbed_pair_does_not_decide() -> None:
    assert judge([100.0, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]) is False


def test_equal_candidates_are_seldom_confirmed() -> None:
    draw = random.Random(5)
    confirmed = 0
    for _ in range(2000):
        ratios: list[float] = []
        while (found := judge(ratios)) is None:
            ratios.append(draw.lognormvariate(0.0, 0.1))
        confirmed += found
    # Five looks that err with 2.5 % each, and the margin of 1 %, allow for at most 12.5 %.
    assert confirmed / 2000 < 0.125
