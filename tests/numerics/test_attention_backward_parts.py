"""The gradients of attention of float32 by tile registers, which multiply parts of bfloat16.

Not all numbers have parts: operands far from 1, infinite or NaN. Vectors are faster for few queries
or keys, and where padding to 32 adds much. The sizes here are those of tiles. All instruction sets
are held to the bounds of test_attention_backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from instruction_set import BFLOAT16_ISAS, forced
from test_attention_backward import UNIT, check, draw, run, wanted_of

from bestof import kernels


@pytest.fixture(autouse=True, params=BFLOAT16_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """As that of the other numerics, and tile registers."""
    yield from forced(request.param)


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    ("queries", "keys", "size", "causal"),
    [
        *((127, 159, 31, False), (128, 160, 32, False), (95, 700, 64, False)),
        *((161, 511, 60, False), (113, 1025, 95, False), (600, 600, 47, False)),
        *((287, 290, 62, True), (300, 271, 96, True), (319, 380, 31, True), (317, 357, 64, True)),
    ],
)
def test_sizes_beside_those_of_tiles(queries: int, keys: int, size: int, causal: bool) -> None:
    case = replace(draw(queries, (1, 2, queries, keys, size)), causal=causal)
    for threads in (1, 3):
        check(case, threads)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("shape", [(127, 159), (1, 159), (3, 127, 159), (2, 1, 1, 159)])
def test_masks(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(7)
    case = draw(15, (2, 3, 127, 159, 31))
    added = random.standard_normal(shape, np.float32)
    hidden = random.random(shape) < 0.3
    check(replace(case, mask=added))
    check(replace(case, mask=np.where(hidden, np.float32(-np.inf), added)))
    check(replace(case, mask=~hidden))


@pytest.mark.long(every=3)
@pytest.mark.parametrize("power", [-100, -80, -55, -41, -20, 9, 40])
def test_operands_of_any_magnitude(power: int) -> None:
    """A whole operand, one token of it, or one number of each token, times a power of two. Tile
    registers take some of these, and others are computed by vectors."""
    usual = replace(draw(12, (1, 2, 287, 290, 62)), causal=power % 2 == 0)
    factor = np.float32(2) ** np.float32(power)
    for name in ("gradient", "q", "k", "v"):
        for at in (np.s_[:, 0], np.s_[0, 0, 60], np.s_[..., 9]):
            if power > 0 and name in "qk":
                continue  # the bounds of such scores are far above all gradients
            given = getattr(usual, name).copy()
            given[at] *= factor
            check(replace(usual, **{name: given}))
    # Scores near 1, of factors that are far from it.
    check(replace(usual, q=usual.q * factor, k=usual.k / factor))
    if abs(power) <= 60:
        scale = 0.1 / float(factor) ** 2
        check(replace(usual, q=usual.q * factor, k=usual.k * factor, scale=scale))


@pytest.mark.parametrize("scale", [2.0**-30, 2.0**-19, 2.0**19, 2.0**30])
def test_scales_of_any_magnitude(scale: float) -> None:
    case = draw(13, (1, 2, 127, 159, 31))
    check(replace(case, q=case.q / np.float32(scale), scale=scale))
    check(replace(case, scale=-scale if scale < 1 else scale, k=case.k / np.float32(scale)))


def test_infinite_operands_and_weights_beyond_1() -> None:
    """What vectors give: a logsumexp that is too small by `low` makes weights exp(low)."""
    for seed, low in enumerate((2.0, 20.0, 80.0)):
        case = draw(seed, (1, 1, 127, 159, 31))
        wanted = wanted_of(case)
        sums = wanted.logsumexp - np.float32(low)
        dv = kernels.attention_backward(
            case.gradient, case.q, case.k, case.v, wanted.out, sums, threads=2
        )[2]
        again = np.exp(low) * wanted.gradients[2]
        error = np.exp(low) * (wanted.bounds[2] + 100 * UNIT * wanted.magnitudes[2])
        assert (np.abs(dv - again) <= error).all()
    for operand in ("gradient", "q", "k", "v"):
        case = draw(3, (1, 2, 127, 159, 31))
        usual = run(case)
        given = getattr(case, operand).copy()
        given[0, 1, 7, 3] = np.inf
        arrays = {"gradient": case.gradient, "q": case.q, "k": case.k, "v": case.v, operand: given}
        wanted = wanted_of(case)
        got = kernels.attention_backward(**arrays, out=wanted.out, logsumexp=wanted.logsumexp)
        for one, two in zip(usual, got, strict=True):
            np.testing.assert_array_equal(one[0, 0], two[0, 0])
        assert any(not np.isfinite(x[0, 1]).all() for x in got)


@pytest.mark.parametrize(("queries", "size"), [(17, 31), (70, 64), (287, 62)])
def test_nan_that_no_query_sees_reaches_nothing(queries: int, size: int) -> None:
    """With a causal mask, keys and values behind the last query. Their gradients are 0."""
    case = replace(draw(9, (1, 2, queries, queries + 40, size)), causal=True)
    wanted, right = wanted_of(case), run(case)
    for nothing in (np.nan, np.inf):
        k, v = case.k.copy(), case.v.copy()
        k[:, :, queries:] = v[:, :, queries:] = nothing
        got = kernels.attention_backward(
            case.gradient, case.q, k, v, wanted.out, wanted.logsumexp, causal=True, threads=2
        )
        for one, two in zip(got, right, strict=True):
            np.testing.assert_array_equal(one, two)
    assert all((x[:, :, queries:] == 0).all() for x in right[1:])
