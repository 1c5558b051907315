"""Attention against float64, element by element.

With u = eps / 2, a score of D products errs by e <= u (D + 4) (sum |scale q k| + |mask|). The
maximum errs likewise. The distance x of a score from the maximum errs by u x when it is taken at
once, and by as much in all steps of the maximum together. An exponential errs by 3e-7, once for the
weight and once for each block that raises the maximum. So a weight errs by the factor
exp(2 e + 2 u x + 3e-7 blocks). The sums of the weights and of the weighted values, of S terms each,
err by u (S + 8) each, relative to the sum of the magnitudes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from instruction_set import BFLOAT16_ISAS, forced
from numpy.typing import NDArray

from bestof import kernels

UNIT = float(np.finfo(np.float32).eps) / 2
EXPONENTIAL = 3e-7
BLOCK = 256
HIDDEN = -np.inf
Values = NDArray[np.float32]
Wide = NDArray[np.float64]


@pytest.fixture(autouse=True, params=BFLOAT16_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """As that of the other numerics, and tile registers, which multiply parts of float32."""
    yield from forced(request.param)


@dataclass(frozen=True, slots=True)
class Heads:
    """Operands. The mask is added; `seen` says what is visible under the mask and causality."""

    q: Values
    k: Values
    v: Values
    mask: NDArray[Any] | None = None
    causal: bool = False
    scale: float | None = None

    def run(self, threads: int = 2) -> tuple[Values, Values]:
        """Return the results and logsumexp, into memory that was poisoned with NaN."""
        batch, heads, queries, _ = self.q.shape
        out = np.full(self.q.shape, np.nan, np.float32)
        sums = np.full((batch, queries, heads), np.nan, np.float32).swapaxes(1, 2)
        got = kernels.attention(
            *(self.q, self.k, self.v),
            mask=self.mask,
            causal=self.causal,
            scale=self.scale,
            out=out,
            logsumexp=sums,
            threads=threads,
        )
        assert got is out
        return out, sums


@dataclass(frozen=True, slots=True)
class Wanted:
    out: Wide
    out_bound: Wide
    logsumexp: Wide
    logsumexp_bound: Wide
    magnitude: Wide  # the sums of the magnitudes of the weighted values


def wanted_of(heads: Heads) -> Wanted:
    q, k, v = (x.astype(np.float64) for x in (heads.q, heads.k, heads.v))
    (_, count, queries, size), keys = q.shape, k.shape[2]
    k, v = (np.repeat(x, count // x.shape[1], axis=1) for x in (k, v))
    scale = 1 / np.sqrt(size) if heads.scale is None else heads.scale
    scores = scale * (q @ k.swapaxes(2, 3))
    magnitude = abs(scale) * (np.abs(q) @ np.abs(k).swapaxes(2, 3))
    if heads.mask is not None:
        mask = heads.mask
        added = np.where(mask, 0.0, HIDDEN) if mask.dtype == bool else mask.astype(np.float64)
        scores = scores + added
        magnitude = magnitude + np.abs(np.where(np.isinf(added), 0, added))
    if heads.causal:
        scores = np.where(np.tri(queries, keys, dtype=bool), scores, HIDDEN)
    highest = np.max(scores, -1, keepdims=True, initial=HIDDEN)
    highest = np.where(highest == HIDDEN, 0, highest)
    weights = np.exp(scores - highest)
    total = weights.sum(-1, keepdims=True)
    is_empty = total == 0
    safe = np.where(is_empty, 1, total)
    out, size_of_out = weights @ v / safe, weights @ np.abs(v) / safe
    # What is farther than 87 from the maximum has no weight, and errs by nothing.
    near = np.where(scores - highest > -88, magnitude, 0)
    error = UNIT * (size + 4) * np.max(near, -1, keepdims=True, initial=0)
    distance = np.minimum(highest - scores, 88)
    steps = 1 + keys // BLOCK
    factor = np.expm1(2 * error + 2 * UNIT * distance + steps * EXPONENTIAL)
    of_values, of_sum = (weights * factor) @ np.abs(v) / safe, (weights * factor / safe).sum(-1)
    lost = keys * np.exp(-86.0) * np.max(np.abs(v), initial=0)
    out_bound = of_values + (of_sum[..., None] + 2 * UNIT * (keys + 8)) * size_of_out + lost
    sums = np.where(is_empty, 0, highest + np.log(safe))
    sums_bound = error + of_sum[..., None] + UNIT * (keys + 8 + 4 * np.abs(sums))
    sums_bound = np.where(is_empty, 0, sums_bound)
    return Wanted(out, out_bound, sums[..., 0], sums_bound[..., 0], size_of_out)


def check(heads: Heads, threads: int = 2) -> None:
    """Hold every element to the bound; NaN fails."""
    (out, sums), wanted = heads.run(threads), wanted_of(heads)
    assert (np.abs(out - wanted.out) <= wanted.out_bound).all()
    assert (np.abs(sums - wanted.logsumexp) <= wanted.logsumexp_bound).all()


def draw(
    seed: int,
    shape: tuple[int, int, int, int, int],
    *,
    shared: int | None = None,
    scale: float = 1.0,
) -> Heads:
    """shape: batch, heads, queries, keys, size."""
    batch, heads, queries, keys, size = shape
    random = np.random.default_rng(seed)
    kept = heads if shared is None else shared
    return Heads(
        random.standard_normal((batch, heads, queries, size), np.float32) * np.float32(scale),
        random.standard_normal((batch, kept, keys, size), np.float32),
        random.standard_normal((batch, kept, keys, size), np.float32),
    )


SIZES = [1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 80, 127, 128, 130]


@pytest.mark.parametrize("causal", [False, True])
def test_odd_sizes(causal: bool) -> None:
    """Every size of the list as number of queries, of keys and of numbers, in turn."""
    for i, queries in enumerate(SIZES):
        keys, size = SIZES[(5 * i + 3) % len(SIZES)], SIZES[(7 * i + 5) % len(SIZES)]
        for order in ((queries, keys, size), (keys, size, queries), (size, queries, keys)):
            check(replace(draw(i, (2, 3, *order)), causal=causal), threads=1 + i % 3)


@pytest.mark.parametrize("causal", [False, True])
def test_several_blocks_of_keys(causal: bool) -> None:
    for queries, keys in ((5, 257), (300, 300), (40, 1000), (700, 513), (90, 1300), (513, 60)):
        for threads in (1, 5):
            check(replace(draw(queries, (1, 2, queries, keys, 24)), causal=causal), threads)


def test_exponentials() -> None:
    """Of two keys with the scores 0 and -x, and the values 0 and 1: exp(-x) / (1 + exp(-x)).

    The score is exact. The exponential errs by 3e-7, and four operations round.
    """
    x = np.concatenate([np.linspace(0, 2, 3001), np.linspace(2, 87, 3001)]).astype(np.float32)
    heads = Heads(
        np.zeros((1, 1, x.size, 1), np.float32),
        np.zeros((1, 1, 2, 1), np.float32),
        np.array([0, 1], np.float32).reshape(1, 1, 2, 1),
        mask=np.stack([np.zeros_like(x), -x], 1),
    )
    out, sums = heads.run()
    weight = np.exp(-x.astype(np.float64))
    wanted = weight / (1 + weight)
    assert (np.abs(out[0, 0, :, 0] - wanted) <= (EXPONENTIAL + 4 * UNIT) * wanted).all()
    assert (np.abs(sums[0, 0] - np.log1p(weight)) <= EXPONENTIAL + 4 * UNIT).all()


def test_a_rising_maximum() -> None:
    """Each block of keys raises the maximum by more than an exponential spans, or never."""
    for step in (0.3, -0.3, 0.01):
        heads = draw(1, (1, 1, 70, 900, 8))
        heads.q[...] = 1
        heads.k[...] = step * np.arange(900, dtype=np.float32)[:, None] / 8
        check(replace(heads, scale=1.0))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape", [(70, 300), (1, 300), (70, 1), (3, 70, 300), (2, 1, 1, 300), (1, 3, 70, 300), ()]
)
def test_masks_that_broadcast(shape: tuple[int, ...], causal: bool) -> None:
    heads = replace(draw(2, (2, 3, 70, 300, 20)), causal=causal)
    random = np.random.default_rng(3)
    numbers = random.standard_normal(shape).astype(np.float32) * np.float32(3)
    seen = random.random(shape) < 0.7
    hidden = np.where(seen, numbers, np.float32(HIDDEN))
    for mask in (numbers, seen, hidden):
        check(replace(heads, mask=np.asarray(mask)))


def test_masks_of_any_strides() -> None:
    heads = draw(4, (2, 3, 30, 70, 20))
    random = np.random.default_rng(5)
    for mask in (
        random.standard_normal((70, 30), np.float32).T,
        random.standard_normal((2, 3, 30, 140), np.float32)[..., ::2],
        random.standard_normal((30, 70), np.float32)[::-1, ::-1],
        np.broadcast_to(random.standard_normal((2, 1, 1, 70), np.float32), (2, 3, 30, 70)),
    ):
        check(replace(heads, mask=mask))


def test_queries_that_see_nothing_give_zeros() -> None:
    heads = draw(6, (1, 2, 70, 300, 16))
    mask = np.zeros((70, 300), np.float32)
    mask[[0, 7, 29]] = HIDDEN
    mask[3, 5:] = HIDDEN
    mask[4, :290] = HIDDEN  # a whole block
    for kind in (mask, mask == 0):
        out, sums = replace(heads, mask=kind).run()
        assert (out[:, :, [0, 7, 29]] == 0).all()
        assert (sums[:, :, [0, 7, 29]] == 0).all()
        check(replace(heads, mask=kind))


@pytest.mark.parametrize("queries", [5, 70])
def test_a_row_of_the_lowest_number_is_a_mean(queries: int) -> None:
    """Libraries hide keys by the lowest float32. If all keys are hidden so, none is."""
    heads = draw(7, (1, 1, queries, 300, 16))
    mask = np.full((queries, 300), np.finfo(np.float32).min)
    out, sums = replace(heads, mask=mask).run()
    np.testing.assert_allclose(out[0, 0], np.tile(heads.v[0, 0].mean(0), (queries, 1)), atol=1e-5)
    assert (sums == np.finfo(np.float32).min).all()


@pytest.mark.parametrize("scale", [1e4, -1e4, 1e-4, 0.0])
def test_extreme_scores(scale: float) -> None:
    """One key has all the weight, or all have the same."""
    for causal in (False, True):
        heads = replace(draw(8, (1, 2, 70, 300, 1)), scale=scale, causal=causal)
        check(heads)
    large = draw(9, (1, 2, 70, 300, 64), scale=scale)
    check(large)


@pytest.mark.parametrize("queries", [4, 70])
def test_scores_beyond_float32(queries: int) -> None:
    """A query with an infinite score has no known weights; its logsumexp is infinity."""
    heads = draw(10, (1, 1, queries, 40, 1))
    heads.q[...] = 3e38
    heads.k[...] = -3
    out, _ = heads.run()  # every score is -infinity
    assert (out == 0).all()
    heads.k[0, 0, 7] = 3
    out, sums = heads.run()
    assert np.isnan(out).all()
    assert (sums == np.inf).all()


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7FC000FF, 0x7F800001])
def test_every_nan_stays_nan(bits: int) -> None:
    """Bits of a NaN must not become an exponent."""
    nan = np.array([bits], np.uint32).view(np.float32)[0]
    for operand in ("q", "k"):
        heads = draw(19, (1, 1, 70, 40, 8))
        getattr(heads, operand)[0, 0, 7, 3:] = nan
        out, sums = heads.run()
        rows = slice(7, 8) if operand == "q" else slice(None)
        assert np.isnan(out[0, 0, rows]).all()
        assert np.isnan(sums[0, 0, rows]).all()
    mask = np.zeros((70, 40), np.float32)
    mask[7, 5] = nan
    assert np.isnan(replace(draw(19, (1, 1, 70, 40, 8)), mask=mask).run()[0][0, 0, 7]).all()


def test_nan_spreads_to_the_queries_that_see_it() -> None:
    usual = replace(draw(11, (2, 2, 70, 300, 20)), causal=True).run()[0]
    for operand in ("q", "k", "v"):
        heads = replace(draw(11, (2, 2, 70, 300, 20)), causal=True)
        getattr(heads, operand)[1, 0, 40, 3] = np.nan
        out, sums = heads.run()
        struck = out[1, 0, 40:41] if operand == "q" else out[1, 0, 40:]
        assert np.isnan(struck if operand != "v" else struck[:, 3]).all()
        if operand != "v":  # a value of weight 0 counts, as in PyTorch: 0 * NaN
            np.testing.assert_array_equal(out[1, 0, :40], usual[1, 0, :40])
            assert np.isnan(sums[1, 0, 40:] if operand == "k" else sums[1, 0, 40]).all()
        else:
            others = np.delete(np.arange(20), 3)
            np.testing.assert_array_equal(out[1, 0][:, others], usual[1, 0][:, others])
        np.testing.assert_array_equal(out[0], usual[0])
        np.testing.assert_array_equal(out[1, 1], usual[1, 1])
    mask = np.zeros((70, 300), np.float32)
    mask[3, 299] = np.nan
    heads = replace(draw(11, (2, 2, 70, 300, 20)), causal=False, mask=mask)
    out, _ = heads.run()
    assert np.isnan(out[:, :, 3]).all()
    assert np.isfinite(np.delete(out, 3, axis=2)).all()


@pytest.mark.parametrize("causal", [False, True])
def test_threads_do_not_change_bits(causal: bool) -> None:
    """Not even if some operands are too large, too small or NaN to be split into parts."""
    heads = replace(draw(21, (1, 1, 700, 1100, 40)), causal=causal)
    heads.q[0, 0, 300, 5] = heads.k[0, 0, 600, 7] = heads.v[0, 0, 650, 3] = np.nan
    heads.v[0, 0, 550:, 9] *= np.float32(1e30)
    heads.v[0, 0, :, 11] *= np.float32(1e-30)
    usual = heads.run(1)
    for threads in (2, 3, 5):
        for got, wanted in zip(heads.run(threads), usual, strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("causal", [False, True])
def test_operands_of_any_magnitude(causal: bool) -> None:
    """Rows of queries, keys and columns of values; others keep their bits."""
    usual = replace(draw(22, (1, 2, 90, 600, 40)), causal=causal)
    before = usual.run()[0]
    for power in (-44, -36, -30, -20, 15, 20, 30, 36):
        factor = np.float32(10.0) ** np.float32(power)
        for name, at in (("q", np.s_[0, 0, 60]), ("k", np.s_[0, 0, 70]), ("v", np.s_[..., 9])):
            given = getattr(usual, name).copy()
            given[at] *= factor
            heads = replace(usual, **{name: given})
            out = heads.run()[0]
            if power < 0 or name == "v":
                check(heads)
            if name == "k":
                np.testing.assert_array_equal(out[0, 1], before[0, 1])
            else:
                mask = np.ones(out.shape, bool)
                mask[at] = False
                np.testing.assert_array_equal(out[mask], before[mask])
    # Products that are near 1, of factors that are far from it.
    for power in (12, 18, 24, 30, 35):
        factor = np.float32(10.0) ** np.float32(power)
        check(replace(usual, q=usual.q * factor, k=usual.k / factor))
        check(replace(usual, q=usual.q / factor, k=usual.k * factor))


@pytest.mark.parametrize("shared", [1, 2, 3])
def test_shared_keys_and_values(shared: int) -> None:
    check(draw(12, (2, 6, 20, 40, 16), shared=shared))


@pytest.mark.parametrize("causal", [False, True])
def test_heads_are_independent(causal: bool) -> None:
    """A head alone has the bits that it has among others."""
    heads = replace(draw(13, (2, 3, 70, 90, 24)), causal=causal)
    whole = heads.run(1)[0]
    for b in range(2):
        for h in range(3):
            q, k, v = (x[b : b + 1, h : h + 1] for x in (heads.q, heads.k, heads.v))
            np.testing.assert_array_equal(
                replace(heads, q=q, k=k, v=v).run(1)[0][0, 0], whole[b, h]
            )


def layouts(x: Values) -> Iterator[Values]:
    """The same numbers: heads beside one another, tokens first, apart, repeated, backwards."""
    yield np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    yield np.ascontiguousarray(x.transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3)
    wide = np.full((*x.shape[:3], x.shape[3] + 5), np.nan, np.float32)
    wide[..., 2:-3] = x
    yield wide[..., 2:-3]
    yield np.ascontiguousarray(x[:, ::-1, ::-1])[:, ::-1, ::-1]


def test_layouts() -> None:
    heads = draw(14, (2, 3, 75, 45, 20))
    usual, _ = heads.run()
    for q, k, v in zip(*map(layouts, (heads.q, heads.k, heads.v)), strict=True):
        np.testing.assert_array_equal(replace(heads, q=q, k=k, v=v).run()[0], usual)
        out = next(layouts(np.full(q.shape, np.nan, np.float32)))
        kernels.attention(q, heads.k, v, out=out, threads=2)
        np.testing.assert_array_equal(out, usual)
    repeated = np.broadcast_to(heads.k[:1, :1], heads.k.shape)
    check(replace(heads, k=repeated, v=repeated))


def test_nothing_beside_the_result_is_written() -> None:
    heads = draw(15, (2, 3, 75, 30, 21))
    frame = np.full((2, 77, 3, 25), 7, np.float32)
    sums = np.full((2, 3, 150), 7, np.float32)
    out = frame[:, 1:76, :, 2:23].swapaxes(1, 2)
    kernels.attention(heads.q, heads.k, heads.v, out=out, logsumexp=sums[..., ::2], threads=2)
    np.testing.assert_array_equal(out, heads.run()[0])
    out[...] = 7
    assert (frame == 7).all()
    assert (sums[..., 1::2] == 7).all()


@pytest.mark.parametrize("axis", range(5))
def test_nothing_to_attend_to(axis: int) -> None:
    shape = [2, 3, 5, 6, 4]
    shape[axis] = 0
    out, sums = draw(16, (shape[0], shape[1], shape[2], shape[3], shape[4])).run()
    assert out.shape == (*shape[:3], shape[4])
    if axis == 3:
        assert (out == 0).all()
        assert (sums == 0).all()
    elif axis == 4:
        np.testing.assert_allclose(sums, np.log(6), rtol=1e-6)
