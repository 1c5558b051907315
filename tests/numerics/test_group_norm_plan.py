"""The gradients of group norm in channels last against float64."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from guarded import address, guarded

from bestof.errors import KernelError
from bestof.kernels import GroupNormPlan

EPS = 2.0**-24
CASES = (
    (1, 1, 1, 1),
    (2, 5, 6, 3),
    (3, 127, 8, 8),
    (1, 130, 20, 1),
    (2, 300, 33, 11),
    (2, 9, 64, 4),
)
"""Images, pixels, channels and groups."""


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_backward(case: tuple[int, int, int, int], scaled: bool) -> None:
    """Sums of float32 are over at most 128 pixels, of products that are rounded twice."""
    images, pixels, channels, groups = case
    random = np.random.default_rng(0)
    shape = images, pixels, channels
    x = random.standard_normal(shape, np.float32) * np.float32(2) + np.float32(1)
    gradient = random.standard_normal(shape, np.float32)
    scale = random.standard_normal(channels, np.float32)
    width = channels // groups
    grouped = images, pixels, groups, width
    by_group = x.reshape(grouped)
    mean = by_group.mean((1, 3))
    rstd = (1 / np.sqrt(by_group.var((1, 3)) + np.float32(1e-5))).astype(np.float32)
    steep = rstd[:, None, :, None].astype(np.float64)
    normed = (by_group.astype(np.float64) - mean[:, None, :, None]) * steep
    g = gradient.astype(np.float64) * (scale if scaled else 1)
    g = g.reshape(grouped)

    def mean_of(values: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return values.mean((1, 3), keepdims=True)  # type: ignore[no-any-return]

    right = steep * (g - mean_of(g) - normed * mean_of(g * normed))
    terms = steep * (np.abs(g) + mean_of(np.abs(g)) + np.abs(normed) * mean_of(np.abs(g * normed)))
    of_scale = gradient * normed.reshape(shape)
    bound = min(pixels, 128) + 8
    for wanted in product((False, True), repeat=3):
        with guarded(*shape) as dx, guarded(channels) as ds, guarded(channels) as db:
            results = [
                one if take else None for one, take in zip((dx, ds, db), wanted, strict=True)
            ]
            operands = gradient, x, mean, rstd, scale if scaled else None
            GroupNormPlan(*case).run_backward(*map(address, (*operands, *results)))
            if wanted[0]:
                apart = np.abs(dx.reshape(grouped) - right)
                assert (apart <= bound * EPS * terms).all()
            for one, parts, take in ((ds, of_scale, wanted[1]), (db, gradient, wanted[2])):
                if take:
                    wide = parts.astype(np.float64)
                    allowed = bound * EPS * np.abs(wide).sum((0, 1))
                    assert (np.abs(one - wide.sum((0, 1))) <= allowed).all()
                else:
                    assert np.isnan(one).all()


def test_what_is_no_number_stays_in_its_group() -> None:
    random = np.random.default_rng(1)
    x, gradient = (random.standard_normal((2, 40, 12), np.float32) for _ in range(2))
    mean, rstd = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    gradient[1, 7, 5] = np.nan
    with guarded(2, 40, 12) as dx:
        GroupNormPlan(2, 40, 12, 3).run_backward(
            *map(address, (gradient, x, mean, rstd, None, dx, None, None))
        )
        bad = np.isnan(dx)
        assert bad[1, :, 4:8].all()
        assert bad.sum() == 40 * 4


def test_invalid_plans() -> None:
    for numbers in ((0, 1, 1, 1), (1, 1, 6, 4), (1, 2**31, 1, 1)):
        with pytest.raises(KernelError, match="images, pixels, channels, groups: expected"):
            GroupNormPlan(*numbers)
