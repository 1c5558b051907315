"""The gradients of attention of bfloat16 against float64, element by element.

The operands are exact numbers, and sums are of float32. So bounds are those of
test_attention_backward, and the gradients are rounded once more. Some instruction sets multiply
bfloat16 itself. With them, the weight W of a score and its slope D are rounded before they are
multiplied: dV errs by UNIT (W + its error) for each weight, and dQ and dK by UNIT (|D| + its error)
for each slope. Up to a logsumexp L of 1,024, exponents are those of two, for which L is rounded
once more. A weight then errs by u |L| <= 2^-14, a sixty-fourth of UNIT.
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
from test_attention_backward import HIDDEN, Case, Values, Wanted, Wide, draw, wanted_of

from bestof import kernels

NAN = 0x7FC0

# Those that multiply bfloat16 itself, by tile registers or by vectors of pairs.
ROUNDING_ISAS = ("amx_bf16", "avx512_bf16")


@pytest.fixture(autouse=True, params=BFLOAT16_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """As that of the other numerics, and the instruction set that has the products in hardware."""
    yield from forced(request.param)


def halved(x: Wide) -> Values:
    return value_of(rounded(x.astype(np.float32)))


def exact(case: Case) -> Case:
    """Return the case with numbers of bfloat16."""
    operands = (case.gradient, case.q, case.k, case.v)
    gradient, q, k, v = (value_of(rounded(x)) for x in operands)
    return replace(case, gradient=gradient, q=q, k=k, v=v)


@dataclass(frozen=True, slots=True)
class Call:
    """What the kernel is given: bits, but for the logsumexp and the mask."""

    arrays: list[NDArray[Any] | None]
    results: list[Bits]

    @classmethod
    def of(cls, case: Case, wanted: Wanted, mask: NDArray[Any] | None) -> Call:
        bits = [rounded(x) for x in (case.gradient, case.q, case.k, case.v, wanted.out)]
        results = [np.full(x.shape, NAN, np.uint16) for x in bits[1:4]]
        return cls([*bits, wanted.logsumexp, mask], results)

    def run(self, case: Case, threads: int) -> list[Bits]:
        arrays = [*self.arrays, *self.results]
        mask = arrays[6]
        if mask is not None:
            q, k = case.q.shape, case.k.shape
            arrays[6] = mask = np.broadcast_to(mask, (*q[:3], k[2]))
        has_bits = mask is not None and mask.dtype == np.uint16
        plan = kernels.AttentionBackwardPlan(
            [None if x is None else x.shape for x in arrays],
            [None if x is None else [s // x.itemsize for s in x.strides] for x in arrays],
            causal=case.causal,
            scale=max(case.q.shape[3], 1) ** -0.5 if case.scale is None else case.scale,
            dtype="bfloat16",
            mask_dtype="bfloat16" if has_bits else "float32",
            threads=threads,
        )
        plan.run([0 if x is None else x.ctypes.data for x in arrays])
        return self.results


def run(case: Case, threads: int = 2) -> list[Values]:
    case = exact(case)
    given = Call.of(case, wanted_of(case, halved), case.mask)
    return [value_of(x) for x in given.run(case, threads)]


def hold(results: list[Values], wanted: Wanted) -> None:
    """Hold every element to the bound; NaN fails."""
    factor_error = UNIT * (1 + 2**-6) if kernels.isa() in ROUNDING_ISAS else 0.0
    for got, right, bound, magnitude in zip(
        results, wanted.gradients, wanted.bounds, wanted.magnitudes, strict=True
    ):
        assert got.shape == right.shape
        allowed = bound + factor_error * magnitude
        assert (np.abs(got - right) <= allowed * (1 + UNIT) + UNIT * np.abs(right)).all()


def check(case: Case, threads: int = 2) -> None:
    hold(run(case, threads), wanted_of(exact(case), halved))


SIZES = [1, 2, 7, 13, 15, 16, 17, 31, 33, 47, 63, 65, 113, 127, 129, 130]


@pytest.mark.parametrize("causal", [False, True])
def test_odd_sizes(causal: bool) -> None:
    """Every size of the list as number of queries, of keys and of numbers, in turn."""
    for i, queries in enumerate(SIZES):
        keys, size = SIZES[(5 * i + 3) % len(SIZES)], SIZES[(7 * i + 5) % len(SIZES)]
        order = ((queries, keys, size), (keys, size, queries), (size, queries, keys))[i % 3]
        check(replace(draw(i, (2, 3, *order)), causal=causal), threads=1 + i % 3)


@pytest.mark.parametrize("causal", [False, True])
def test_several_blocks(causal: bool) -> None:
    for queries, keys in ((5, 257), (300, 300), (400, 130)):
        for threads in (1, 5):
            check(replace(draw(queries, (1, 2, queries, keys, 24)), causal=causal), threads)


@pytest.mark.parametrize("causal", [False, True])
def test_shared_heads(causal: bool) -> None:
    for shared in (1, 2, 3):
        check(replace(draw(4, (2, 6, 40, 150, 16), shared=shared), causal=causal))


@pytest.mark.parametrize("shape", [(40, 150), (1, 150), (2, 1, 1, 150)])
def test_masks_of_both_types(shape: tuple[int, ...]) -> None:
    case, random = exact(draw(2, (2, 3, 40, 150, 20))), np.random.default_rng(3)
    numbers = halved(random.standard_normal(shape) * 3)
    hidden = np.where(random.random(shape) < 0.7, numbers, np.float32(HIDDEN))
    case = replace(case, mask=hidden)
    wanted = wanted_of(case, halved)
    for mask in (hidden, rounded(hidden)):
        results = Call.of(case, wanted, mask).run(case, 2)
        hold([value_of(x) for x in results], wanted)


def test_arrays() -> None:
    """The function takes and returns what the plan does."""
    torch = pytest.importorskip("torch")
    case = exact(draw(5, (1, 2, 20, 30, 16)))
    wanted = wanted_of(case, halved)
    gradient, q, k, v, out = (
        torch.from_numpy(x).bfloat16() for x in (case.gradient, case.q, case.k, case.v, wanted.out)
    )
    found = kernels.attention_backward(gradient, q, k, v, out, torch.from_numpy(wanted.logsumexp))
    assert {x.dtype for x in found} == {torch.bfloat16}
    hold([x.float().numpy() for x in found], wanted)


@pytest.mark.parametrize("size", [1, 7, 33, 64])
def test_no_byte_behind_an_operand_is_touched(size: int) -> None:
    for queries, keys in ((1, 1), (15, 33), (29, 271)):
        case = exact(draw(size, (1, 2, queries, keys, size)))
        wanted = wanted_of(case, halved)
        usual = Call.of(case, wanted, None)
        fenced = Call(
            [None if x is None else at_the_end(x) for x in usual.arrays],
            [at_the_end(x) for x in usual.results],
        )
        for got, one in zip(fenced.run(case, 2), usual.run(case, 2), strict=True):
            np.testing.assert_array_equal(got, one)


def test_strides_and_what_lies_between() -> None:
    case = exact(draw(15, (2, 3, 45, 45, 21)))
    usual = Call.of(case, wanted_of(case, halved), None)

    def apart(x: Bits) -> tuple[Bits, Bits]:
        frame = np.full((2, 47, 3, 25), 7, np.uint16)
        view = frame[:, 1:46, :, 1:22].swapaxes(1, 2)
        view[...] = x
        return frame, view

    frames, views = zip(*map(apart, usual.results), strict=True)
    operands = [x if x is None or x.ndim < 4 else apart(x)[1] for x in usual.arrays]
    Call(operands, list(views)).run(case, 2)
    for frame, view, one in zip(frames, views, usual.run(case, 2), strict=True):
        np.testing.assert_array_equal(view, one)
        view[...] = 7
        assert (frame == 7).all()


def test_nan_stays_in_its_head() -> None:
    case = draw(10, (2, 2, 40, 150, 20))
    usual = run(case)
    struck = exact(case)
    wanted = wanted_of(struck, halved)
    given = Call.of(struck, wanted, None)
    gradient = given.arrays[0]
    assert gradient is not None
    gradient[1, 1, 7, 3] = NAN
    for one, two in zip(usual, map(value_of, given.run(struck, 2)), strict=True):
        assert np.isnan(two[1, 1]).any()
        np.testing.assert_array_equal(one[0], two[0])
        np.testing.assert_array_equal(one[1, 0], two[1, 0])


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
            case = replace(draw(size, (1, 2, queries, keys, size)), causal=causal)
            check(case, threads=1 + i % 3)
            random = np.random.default_rng(keys)
            mask = random.standard_normal((queries, keys), np.float32)
            mask[random.random(mask.shape) < 0.3] = HIDDEN
            check(replace(case, mask=mask))


@pytest.mark.long(every=3)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [1, 2])
def test_shared_heads_of_several_blocks(shared: int, causal: bool) -> None:
    """Each head of queries adds to the sums of each block of keys."""
    case = draw(14, (2, 4, 270, 530, 33), shared=shared)
    check(replace(case, causal=causal))
    check(replace(draw(14, (1, 4, 530, 270, 33), shared=shared), causal=causal))


@pytest.mark.parametrize("scale", [0.0, -0.25, 3.0])
def test_scales_of_any_sign(scale: float) -> None:
    case = replace(draw(5, (1, 2, 37, 290, 33)), scale=scale)
    check(case)
    check(replace(case, causal=True))
    check(replace(case, mask=np.linspace(-3, 3, 290, dtype=np.float32)[None]))


@pytest.mark.parametrize("scale", [3e38, -3e38])
def test_a_scale_near_the_largest_number(scale: float) -> None:
    """The scale times log2(e) is infinity. Products are 0 to 3 times the least normal number."""
    case = draw(5, (1, 2, 64, 96, 32))
    case.q[...] = 0
    case.q[..., 3] = np.arange(64, dtype=np.float32) % 4 * 2.0**-63
    case.k[...] = 0
    case.k[..., 3] = np.arange(96) % 2 * 2.0**-63
    check(replace(case, scale=scale))


@pytest.mark.parametrize("scale", [2.0**28, -(2.0**28), 2.0**36])
def test_slopes_below_the_normal_numbers(scale: float) -> None:
    """A large scale makes gradients of slopes that tile registers would take for zero. Each key
    has a number of its own, so that no larger slope hides it."""
    case = draw(5, (1, 2, 32, 16, 16))
    case.q[...] *= np.float32(2.0**20 / abs(scale))
    case.k[...] = np.eye(16, dtype=np.float32) * np.float32(2.0**-20)
    case.v[...] *= np.float32(2.0**-12)
    mask = np.full((32, 16), -80, np.float32)
    mask[:, 0] = 0
    check(replace(case, scale=scale, mask=mask))


def test_queries_that_see_nothing_have_no_gradient() -> None:
    """Their values and keys may be anything that is finite."""
    case = draw(6, (1, 2, 70, 300, 16))
    mask = np.zeros((70, 300), np.float32)
    mask[[0, 7, 64, 69]] = HIDDEN
    mask[3, 5:] = HIDDEN
    mask[32:48] = HIDDEN
    case = replace(case, mask=mask)
    check(case)
    assert (run(case)[0][:, :, [0, 7, 32, 47, 64, 69]] == 0).all()


LOWEST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("far", [-2e3, -1e10, -1e38, LOWEST, -3.3895314e38, 1e10, 3e38])
@pytest.mark.parametrize("keys", [40, 96, 300])
def test_masks_far_from_zero(keys: int, far: float) -> None:
    """The logsumexp of a row whose mask absorbs every score is the mask: weights are 1, as in
    PyTorch. A row with one visible key weighs it by 1."""
    case = exact(draw(7, (1, 1, 40, keys, 16)))
    case.gradient[:, :, 6:] = 0
    mask = np.full((40, keys), far, np.float32)
    mask[5] = HIDDEN
    mask[5, 7] = far
    arrays = [case.gradient, case.q, case.k, case.v, case.q]
    sums = np.full((1, 1, 40), far, np.float32)
    case = replace(case, scale=1e-20)
    given = Call([*map(rounded, arrays), sums, mask], Call.of(case, wanted_of(case), None).results)
    _, _, dv = (value_of(x)[0, 0].astype(np.float64) for x in given.run(case, 2))
    every = case.gradient[0, 0, :5].astype(np.float64)
    wanted = np.tile(every.sum(0), (keys, 1))
    wanted[7] += case.gradient[0, 0, 5]
    bound = 2 * UNIT * (np.abs(every).sum(0) + np.abs(case.gradient[0, 0, 5]))
    assert (np.abs(dv - wanted) <= bound).all()


def test_masks_of_the_lowest_number() -> None:
    """Rows that it hides in part; it times log2(e) is -infinity."""
    case, random = draw(8, (1, 2, 70, 300, 33)), np.random.default_rng(1)
    mask = np.where(random.random((70, 300)) < 0.4, np.float32(LOWEST), np.float32(0))
    mask[:, 3] = 0
    wanted = wanted_of(exact(replace(case, mask=np.where(mask < 0, HIDDEN, mask))), halved)
    case = replace(exact(case), mask=mask)
    hold([value_of(x) for x in Call.of(case, wanted, mask).run(case, 2)], wanted)


@pytest.mark.parametrize("shift", [900.0, -900.0, 1e4, -6e4])
def test_a_logsumexp_far_from_zero(shift: float) -> None:
    """A mask moves all scores of a row. Its weights keep their ratios, and the bounds grow."""
    case = draw(9, (1, 2, 40, 70, 16))
    mask = np.zeros((40, 1), np.float32)
    mask[::3] = shift
    check(replace(case, mask=mask))


@pytest.mark.parametrize(("queries", "size"), [(17, 31), (33, 64), (65, 96), (300, 33)])
def test_nan_that_no_query_sees_reaches_nothing(queries: int, size: int) -> None:
    """With a causal mask, keys and values behind the last query. Their gradients are 0."""
    case = exact(replace(draw(9, (1, 2, queries, queries + 40, size)), causal=True))
    wanted = wanted_of(case, halved)
    right = Call.of(case, wanted, None).run(case, 2)
    for nothing in (NAN, 0x7F80):  # NaN and infinity
        given = Call.of(case, wanted, None)
        for operand in given.arrays[2:4]:
            assert operand is not None
            operand[:, :, queries:] = nothing
        for got, one in zip(given.run(case, 2), right, strict=True):
            np.testing.assert_array_equal(got, one)
    assert all((x[:, :, queries:] == 0).all() for x in right[1:])


def test_a_hidden_nan_stays_hidden() -> None:
    """A query far behind sees no later key, and a key far behind is seen by no earlier query."""
    case = exact(replace(draw(11, (1, 1, 330, 330, 20)), causal=True))
    wanted = wanted_of(case, halved)
    usual = Call.of(case, wanted, None).run(case, 2)
    for operand in (2, 3):
        given = Call.of(case, wanted, None)
        struck = given.arrays[operand]
        assert struck is not None
        struck[0, 0, 300] = NAN
        dq = given.run(case, 2)[0]
        np.testing.assert_array_equal(dq[0, 0, :288], usual[0][0, 0, :288])
        assert np.isnan(value_of(dq[0, 0, 300:])).any(-1).all()
    given = Call.of(case, wanted, None)
    gradient = given.arrays[0]
    assert gradient is not None
    gradient[0, 0, 40] = NAN
    for got, one in zip(given.run(case, 2)[1:], usual[1:], strict=True):
        assert np.isnan(value_of(got[0, 0, :41])).all()
        np.testing.assert_array_equal(got[0, 0, 64:], one[0, 0, 64:])


def test_nan_of_a_tile_before_stays_there() -> None:
    """Rows that a tile does not use hold what the tile before left."""
    case = exact(draw(7, (1, 2, 300, 300, 40)))
    wanted = wanted_of(case, halved)
    usual = Call.of(case, wanted, None).run(case, 1)
    given = Call.of(case, wanted, None)
    for operand in (given.arrays[0], given.arrays[1]):
        assert operand is not None
        operand[:, 0, :290] = NAN
    struck = given.run(case, 1)
    np.testing.assert_array_equal(struck[0][:, 0, 290:], usual[0][:, 0, 290:])
    for got, one in zip(struck, usual, strict=True):
        np.testing.assert_array_equal(got[:, 1], one[:, 1])


@pytest.mark.parametrize("shape", [(2, 3, 70, 270, 33), (1, 2, 300, 600, 64)], ids=str)
def test_the_number_of_threads_changes_no_bit(shape: tuple[int, int, int, int, int]) -> None:
    case = replace(draw(3, shape), causal=True)
    wanted = run(case, 1)
    for threads in (2, 3, 8):
        for one, other in zip(run(case, threads), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("axis", range(5))
def test_nothing_to_attend_to(axis: int) -> None:
    shape = [2, 3, 5, 6, 4]
    shape[axis] = 0
    case = draw(16, (shape[0], shape[1], shape[2], shape[3], shape[4]))
    bits = [rounded(x) for x in (case.gradient, case.q, case.k, case.v, case.q)]
    results = [np.full(x.shape, NAN, np.uint16) for x in bits[1:4]]
    Call([*bits, np.zeros(case.q.shape[:3], np.float32), None], results).run(case, 2)
    assert all((x == 0).all() for x in results)
