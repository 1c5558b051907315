"""The bounds, against the probabilities that they promise."""

from __future__ import annotations

import random

import pytest

from bestof.selection.policies.bound import SLACK, margins, spare, tail


@pytest.mark.parametrize(
    ("trials", "least", "expected"), [(3, 3, 1 / 8), (3, 2, 1 / 2), (4, 0, 1.0), (10, 10, 2**-10)]
)
def test_tail_of_a_fair_coin(trials: int, least: int, expected: float) -> None:
    assert tail(trials, least, 0.5) == pytest.approx(expected)


@pytest.mark.parametrize("confidence", [0.9, 0.99, 0.999])
@pytest.mark.parametrize("trials", [1, 2, 3, 5, 7, 10, 24, 60])
def test_each_factor_leaves_just_the_chance_that_is_left(trials: int, confidence: float) -> None:
    for exceptions, factor in enumerate(margins(trials, confidence)):
        late = 0.5 if factor == 1.0 else SLACK / (factor - 1.0)
        chance = tail(trials, trials - exceptions, late)
        assert chance <= (1.0 - confidence) * (1 + 1e-6)
        assert factor == 1.0 or chance == pytest.approx(1.0 - confidence)


def test_more_trials_need_less_and_more_exceptions_need_more() -> None:
    firsts = [margins(trials, 0.999)[0] for trials in range(2, 12)]
    assert firsts == sorted(firsts, reverse=True)
    assert firsts[-2:] == [1.0, 1.0]  # the sign test: 2^-10 < 0.001
    assert list(margins(9, 0.999)) == sorted(margins(9, 0.999))


def test_the_sign_test_holds_from_its_first_number_of_trials() -> None:
    assert [spare(trials, 0.99) for trials in (6, 7, 10, 11)] == [None, 0, 0, 1]


def test_noise_as_heavy_as_assumed_seldom_exceeds_the_factors() -> None:
    draw = random.Random(7)
    trials, confidence, runs = 4, 0.95, 20000
    factors = margins(trials, confidence)
    wrong = [0] * len(factors)
    for _ in range(runs):
        ratios = sorted(
            1.0 + SLACK / max(draw.random(), 1e-9) * (draw.random() < 0.999) for _ in range(trials)
        )
        for exceptions, factor in enumerate(factors):
            wrong[exceptions] += ratios[exceptions] > factor
    assert max(wrong) / runs < (1.0 - confidence) + 4 * (0.05 * 0.95 / runs) ** 0.5
