"""Attention of bfloat16 against float64, element by element.

The operands are exact numbers and sums are float32, so bounds are those of test_attention, and
more: the result is rounded, and where products are of pairs each weight is rounded before it meets
its value. Rounding to bfloat16 errs by UNIT relative to the number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from bfloat16 import UNIT, Bits, rounded, value_of
from fenced_memory import at_the_end
from instruction_set import BFLOAT16_ISAS, forced
from numpy.typing import NDArray
from test_attention import EXPONENTIAL, HIDDEN, Heads, Values, draw, wanted_of
from test_attention import UNIT as SINGLE_UNIT
from test_attention_few_queries import SHAPES, masked

from bestof import kernels

NAN = 0x7FC0


@pytest.fixture(autouse=True, params=BFLOAT16_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """As that of the other numerics, and the instruction set that has the products in hardware."""
    yield from forced(request.param)


@dataclass(frozen=True, slots=True)
class Halves:
    """Operands as bits; the mask is float32, boolean, or bits."""

    q: Bits
    k: Bits
    v: Bits
    mask: NDArray[Any] | None = None
    causal: bool = False
    scale: float | None = None

    def run(self, threads: int = 2) -> tuple[Values, Values]:
        """Return the results and logsumexp, into memory that was poisoned with NaN."""
        out = np.full(self.q.shape, NAN, np.uint16)
        sums = np.full(self.q.shape[:3], np.nan, np.float32)
        by_plan([self.q, self.k, self.v, out, self.mask, sums], self, threads)
        return value_of(out), sums

    def exact(self) -> Heads:
        """Return the same numbers as float32."""
        mask = value_of(self.mask) if has_bits(self.mask) else self.mask
        q, k, v = map(value_of, (self.q, self.k, self.v))
        return Heads(q, k, v, mask, self.causal, self.scale)


def has_bits(mask: NDArray[Any] | None) -> bool:
    return mask is not None and mask.dtype == np.uint16


def by_plan(arrays: list[NDArray[Any] | None], given: Halves, threads: int) -> None:
    """Run on q, k, v, out, a mask to add, and the logsumexp."""
    mask = arrays[4]
    if mask is not None:
        mask = np.broadcast_to(mask, (*given.q.shape[:3], given.k.shape[2]))
    arrays = [*arrays[:4], mask, arrays[5]]
    plan = kernels.AttentionPlan(
        [None if x is None else x.shape for x in arrays],
        [None if x is None else [s // x.itemsize for s in x.strides] for x in arrays],
        causal=given.causal,
        scale=max(given.q.shape[3], 1) ** -0.5 if given.scale is None else given.scale,
        dtype="bfloat16",
        mask_dtype="bfloat16" if has_bits(mask) else "float32",
        threads=threads,
    )
    q, k, v, out, added, sums = (0 if x is None else x.ctypes.data for x in arrays)
    plan.run(q, k, v, out, added, sums)


def halves(heads: Heads) -> Halves:
    q, k, v = map(rounded, (heads.q, heads.k, heads.v))
    return Halves(q, k, v, heads.mask, heads.causal, heads.scale)


def check(given: Halves, threads: int = 2) -> None:
    """Hold every element to the bound; NaN fails."""
    (out, sums), wanted = given.run(threads), wanted_of(given.exact())
    bound = wanted.out_bound + UNIT * (wanted.magnitude + wanted.out_bound)
    bound = bound * (1 + UNIT) + UNIT * np.abs(wanted.out)
    assert (np.abs(out - wanted.out) <= bound).all()
    assert (np.abs(sums - wanted.logsumexp) <= wanted.logsumexp_bound).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shape", "shared"), SHAPES, ids=str)
def test_few_queries(shape: tuple[int, int, int, int, int], shared: int, causal: bool) -> None:
    plain = replace(draw(sum(shape), shape, shared=shared), causal=causal)
    for heads in (plain, masked(plain, 5)):
        for threads in (1, 3):
            check(halves(heads), threads)


SIZES = [1, 2, 7, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 80, 127, 128, 130]


@pytest.mark.parametrize("causal", [False, True])
def test_odd_sizes(causal: bool) -> None:
    """Every size of the list as number of queries, of keys and of numbers, in turn."""
    for i, queries in enumerate(SIZES):
        keys, size = SIZES[(5 * i + 3) % len(SIZES)], SIZES[(7 * i + 5) % len(SIZES)]
        for order in ((queries, keys, size), (keys, size, queries), (size, queries, keys)):
            check(replace(halves(draw(i, (2, 3, *order))), causal=causal), threads=1 + i % 3)


@pytest.mark.parametrize("causal", [False, True])
def test_several_blocks_of_keys(causal: bool) -> None:
    for queries, keys in ((5, 257), (300, 300), (40, 1000), (700, 513), (513, 60)):
        for threads in (1, 5):
            heads = draw(queries, (1, 2, queries, keys, 24))
            check(replace(halves(heads), causal=causal), threads)


HEADS = [31, 33, 63, 64, 65, 96]
KEYS = [1, 15, 17, 31, 33, 255, 257]
QUERIES = [17, 31, 33, 65]


@pytest.mark.long(every=5)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", KEYS)
def test_around_the_sizes_of_tiles(keys: int, causal: bool) -> None:
    """Tile registers have 16 rows of 32 numbers, and two of them are as wide as a panel."""
    for i, queries in enumerate(QUERIES):
        for size in HEADS:
            given = replace(halves(draw(size, (1, 2, queries, keys, size))), causal=causal)
            check(given, threads=1 + i % 3)
            random = np.random.default_rng(keys)
            mask = random.standard_normal((queries, keys), np.float32)
            mask[random.random(mask.shape) < 0.3] = HIDDEN
            check(replace(given, mask=mask))


@pytest.mark.parametrize("scale", [0.0, -0.25, 3.0])
def test_scales_of_any_sign(scale: float) -> None:
    given = replace(halves(draw(5, (1, 2, 37, 290, 33))), scale=scale)
    check(given)
    check(replace(given, causal=True))
    check(replace(given, mask=np.linspace(-3, 3, 290, dtype=np.float32)[None]))


@pytest.mark.parametrize("scale", [3e38, -3e38])
def test_a_scale_near_the_largest_number(scale: float) -> None:
    """The scale times log2(e) is infinity. Products are 0 to 3 times the least normal number."""
    heads = draw(5, (1, 2, 64, 96, 32))
    heads.q[...] = 0
    heads.q[..., 3] = np.arange(64, dtype=np.float32) % 4 * 2.0**-63
    heads.k[...] = 0
    heads.k[..., 3] = np.arange(96) % 2 * 2.0**-63
    check(replace(halves(heads), scale=scale))


def test_exponentials() -> None:
    """Of two keys with the scores 0 and -x, and the values 0 and 1: exp(-x) / (1 + exp(-x)).

    As the test of float32. The weight and the result are rounded.
    """
    x = np.concatenate([np.linspace(0, 2, 3001), np.linspace(2, 87, 3001)]).astype(np.float32)
    given = Halves(
        np.zeros((1, 1, x.size, 1), np.uint16),
        np.zeros((1, 1, 2, 1), np.uint16),
        rounded(np.array([0, 1], np.float32)).reshape(1, 1, 2, 1),
        mask=np.stack([np.zeros_like(x), -x], 1),
    )
    out, sums = given.run()
    weight = np.exp(-x.astype(np.float64))
    wanted = weight / (1 + weight)
    exact = EXPONENTIAL + 4 * SINGLE_UNIT
    assert (np.abs(out[0, 0, :, 0] - wanted) <= ((1 + UNIT) ** 2 * (1 + exact) - 1) * wanted).all()
    assert (np.abs(sums[0, 0] - np.log1p(weight)) <= exact).all()


def test_a_rising_maximum() -> None:
    """Each block of keys raises the maximum by more than an exponential spans, or never."""
    for step in (0.3, -0.3, 0.01):
        heads = draw(1, (1, 1, 20, 900, 8))
        heads.q[...] = 1
        heads.k[...] = step * np.arange(900, dtype=np.float32)[:, None] / 8
        check(replace(halves(heads), scale=1.0))


@pytest.mark.parametrize("queries", [3, 40])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", ["one", "all", "heads"])
def test_masks(rows: str, causal: bool, queries: int) -> None:
    shape = {"one": (300,), "all": (queries, 300), "heads": (2, 1, queries, 300)}[rows]
    given = replace(halves(draw(2, (2, 3, queries, 300, 20))), causal=causal)
    random = np.random.default_rng(3)
    numbers = random.standard_normal(shape).astype(np.float32) * np.float32(3)
    hidden = np.where(random.random(shape) < 0.7, numbers, np.float32(HIDDEN))
    for mask in (numbers, hidden, rounded(numbers), rounded(hidden)):
        check(replace(given, mask=mask))


def test_a_boolean_mask_and_a_mask_of_one_number() -> None:
    given, seen = halves(draw(2, (1, 3, 40, 70, 20))), np.arange(70) % 3 > 0
    out = np.full(given.q.shape, NAN, np.uint16)
    operands = given.q, given.k, given.v
    kernels.attention(*operands, mask=seen, out=out, dtype="bfloat16")
    added = np.where(seen, 0, HIDDEN).astype(np.float32)
    np.testing.assert_array_equal(value_of(out), replace(given, mask=added).run()[0])
    check(replace(given, mask=np.array([[0x4000]], np.uint16)))  # 2.0


def test_queries_that_see_nothing_give_zeros() -> None:
    given = halves(draw(6, (1, 2, 30, 300, 16)))
    mask = np.zeros((30, 300), np.float32)
    mask[[0, 7, 29]] = HIDDEN
    mask[4, :290] = HIDDEN
    given = replace(given, mask=mask)
    out, sums = given.run()
    assert (out[:, :, [0, 7, 29]] == 0).all()
    assert (sums[:, :, [0, 7, 29]] == 0).all()
    check(given)


@pytest.mark.parametrize("shared", [1, 2, 3])
def test_shared_keys_and_values(shared: int) -> None:
    check(halves(draw(12, (2, 6, 20, 40, 16), shared=shared)))


def test_nan_spreads_to_the_queries_that_see_it() -> None:
    usual = replace(halves(draw(11, (2, 2, 50, 300, 20))), causal=True)
    right, _ = usual.run()
    for operand in ("q", "k", "v"):
        struck = getattr(usual, operand).copy()
        struck[1, 0, 40, 3] = NAN
        out, _ = replace(usual, **{operand: struck}).run()
        is_nan = np.isnan(out)
        assert is_nan[1, 0, 40 : 41 if operand == "q" else 50].any(-1).all()
        np.testing.assert_array_equal(out[0], right[0])
        np.testing.assert_array_equal(out[1, 1], right[1, 1])
        if operand != "v":  # a value of weight 0 counts, as in PyTorch: 0 * NaN
            np.testing.assert_array_equal(out[1, 0, :40], right[1, 0, :40])
        else:
            others = np.delete(np.arange(20), 3)
            np.testing.assert_array_equal(out[1, 0][:, others], right[1, 0][:, others])


@pytest.mark.parametrize(("queries", "size"), [(17, 31), (33, 64), (65, 96), (300, 33)])
def test_nan_that_no_query_sees_reaches_nothing(queries: int, size: int) -> None:
    """With a causal mask, keys and values behind the last query."""
    usual = replace(halves(draw(9, (1, 2, queries, queries + 40, size))), causal=True)
    right, sums = usual.run()
    for nothing in (NAN, 0x7F80):  # NaN and infinity
        k, v = usual.k.copy(), usual.v.copy()
        k[:, :, queries:] = v[:, :, queries:] = nothing
        found = replace(usual, k=k, v=v).run()
        np.testing.assert_array_equal(found[0], right)
        np.testing.assert_array_equal(found[1], sums)


def test_nan_of_a_tile_before_stays_there() -> None:
    """Rows that a tile does not use hold what the tile before left."""
    shape = (1, 1, 300, 300, 40)
    struck, usual = halves(draw(7, shape)), halves(draw(7, shape))
    struck.q[:, :, :290] = NAN
    np.testing.assert_array_equal(struck.run(1)[0][:, :, 290:], usual.run(1)[0][:, :, 290:])


def test_infinite_scores_as_in_float32() -> None:
    """One infinite score makes the result NaN, and the logsumexp infinite."""
    given = halves(draw(8, (1, 1, 40, 70, 16)))
    mask = np.zeros((40, 70), np.float32)
    mask[3, 5] = np.inf
    out, sums = replace(given, mask=mask).run()
    assert np.isnan(out[0, 0, 3]).all()
    assert sums[0, 0, 3] == np.inf
    assert np.isfinite(np.delete(out[0, 0], 3, 0)).all()


LOWEST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("far", [-1e4, -1e10, -1e38, LOWEST, -3.3895314e38, 1e10, 3e38])
@pytest.mark.parametrize("keys", [40, 70, 96, 300])
def test_masks_far_from_zero(keys: int, far: float) -> None:
    """A mask that absorbs every score gives the mean of the values; one visible key gives its own.

    `torch.finfo(dtype).min` is a usual mask. A row that it hides completely still has a softmax.
    """
    given = replace(halves(draw(4, (1, 1, 40, keys, 16))), scale=1e-4)
    mask = np.zeros((40, keys), np.float32)
    mask[3] = far
    mask[5] = HIDDEN
    mask[5, 7] = far
    out, sums = replace(given, mask=mask).run()
    values = value_of(given.v)[0, 0]
    assert (np.abs(out[0, 0, 3] - values.mean(0)) <= 3 * UNIT * np.abs(values).mean(0) + 1e-4).all()
    np.testing.assert_array_equal(out[0, 0, 5], values[7])
    np.testing.assert_allclose(sums[0, 0, 5], far, rtol=1e-6)
    assert np.isfinite(out).all()


def test_products_far_from_zero() -> None:
    """The scale is no power of two, so the highest score is rounded."""
    given = halves(draw(4, (1, 1, 40, 96, 33)))
    q, k = (np.full_like(value_of(x), 1e8) for x in (given.q, given.k))
    out, _ = replace(given, q=rounded(q), k=rounded(k)).run()
    values = value_of(given.v)[0, 0]
    assert (np.abs(out[0, 0] - values.mean(0)) <= 3 * UNIT * np.abs(values).mean(0)).all()


def test_strides_and_what_lies_between() -> None:
    """Operands at odd elements, heads beside one another. Nothing beside the result is written."""
    given = halves(draw(15, (2, 3, 45, 45, 21)))

    def apart(x: Bits) -> tuple[Bits, Bits]:
        frame = np.full((2, 47, 3, 25), 7, np.uint16)
        view = frame[:, 1:46, :, 1:22].swapaxes(1, 2)
        view[...] = x
        return frame, view

    frame, out = apart(np.full(given.q.shape, NAN, np.uint16))
    operands = [apart(x)[1] for x in (given.q, given.k, given.v)]
    by_plan([*operands, out, None, None], given, 2)
    np.testing.assert_array_equal(value_of(out.copy()), given.run()[0])
    out[...] = 7
    assert (frame == 7).all()


@pytest.mark.parametrize("size", [1, 7, 33, 64, 70])
def test_no_byte_behind_an_operand_is_touched(size: int) -> None:
    for queries, keys in ((5, 1), (15, 33), (29, 271)):
        given = halves(draw(size, (1, 2, queries, keys, size)))
        numbers = np.random.default_rng(1).standard_normal((queries, keys), np.float32)
        for mask in (None, numbers, rounded(numbers)):
            fenced = [at_the_end(x) for x in (given.q, given.k, given.v)]
            out = at_the_end(np.full(given.q.shape, NAN, np.uint16))
            sums = at_the_end(np.full((1, 2, queries), np.nan, np.float32))
            added = None if mask is None else at_the_end(mask)
            by_plan([*fenced, out, added, sums], given, 2)
            usual = replace(given, mask=mask).run()
            np.testing.assert_array_equal(value_of(out), usual[0])
            np.testing.assert_array_equal(sums, usual[1])


# In the last shapes, some parts see fewer blocks of keys than there are.
@pytest.mark.parametrize(
    "shape",
    [(1, 2, 170, 470, 33), (1, 1, 700, 250, 33), (1, 1, 700, 700, 33), (1, 2, 300, 900, 33)],
    ids=str,
)
def test_the_number_of_threads_changes_no_bit(shape: tuple[int, int, int, int, int]) -> None:
    given = replace(halves(draw(3, shape)), causal=True)
    wanted, _ = given.run(1)
    for threads in (2, 3, 8):
        np.testing.assert_array_equal(given.run(threads)[0], wanted)


@pytest.mark.parametrize("axis", range(5))
def test_nothing_to_attend_to(axis: int) -> None:
    shape = [2, 3, 5, 6, 4]
    shape[axis] = 0
    out, sums = halves(draw(16, (shape[0], shape[1], shape[2], shape[3], shape[4]))).run()
    if axis == 3:
        assert (out == 0).all()
        assert (sums == 0).all()
    elif axis == 4:
        np.testing.assert_allclose(sums, np.log(6), rtol=1e-6)
