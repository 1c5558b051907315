"""The gradients of attention against float64, element by element.

The logsumexp L is that of float64, rounded. The result O is what the kernel is given. With u = eps
/ 2, a score s of D products errs by e <= u (D + 4) (sum |scale q k| + |mask|), and L by u |L|. So a
weight W = exp(s - L) errs by the factor exp(e + u |L| + u |s - L| + 3e-7). The slope of a score is
W (G V - sum G O): both sums of D products err by u (D + 4) times the sum of the magnitudes, and two
operations round. dQ, dK and dV are sums of such weights or slopes. A sum of n terms errs by u (n +
8) times the sum of the magnitudes; the 8 covers the scale and the additions of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from fenced_memory import at_the_end
from instruction_set import BFLOAT16_ISAS, forced
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError

UNIT = float(np.finfo(np.float32).eps) / 2
EXPONENTIAL = 3e-7
HIDDEN = -np.inf
Values = NDArray[np.float32]
Wide = NDArray[np.float64]


@pytest.fixture(autouse=True, params=BFLOAT16_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """As that of the other numerics, and tile registers, which multiply parts of float32."""
    yield from forced(request.param)


@dataclass(frozen=True, slots=True)
class Case:
    gradient: Values
    q: Values
    k: Values
    v: Values
    mask: NDArray[Any] | None = None
    causal: bool = False
    scale: float | None = None


def draw(seed: int, shape: tuple[int, int, int, int, int], *, shared: int | None = None) -> Case:
    """shape: batch, heads, queries, keys, size."""
    batch, heads, queries, keys, size = shape
    random = np.random.default_rng(seed)
    kept = heads if shared is None else shared
    sizes = [(heads, queries)] * 2 + [(kept, keys)] * 2
    return Case(*(random.standard_normal((batch, *one, size), np.float32) for one in sizes))


@dataclass(frozen=True, slots=True)
class Wanted:
    out: Values
    logsumexp: Values
    gradients: tuple[Wide, Wide, Wide]
    bounds: tuple[Wide, Wide, Wide]
    magnitudes: tuple[Wide, Wide, Wide]
    """The sums of the magnitudes of weights or slopes times operands, with their errors."""


def narrow(x: Wide) -> Values:
    return x.astype(np.float32)


def wanted_of(case: Case, stored: Callable[[Wide], Values] = narrow) -> Wanted:
    """Return the gradients for the results that were `stored`."""
    g, q, k, v = (x.astype(np.float64) for x in (case.gradient, case.q, case.k, case.v))
    (_, heads, queries, size), keys = q.shape, k.shape[2]
    sharing = heads // k.shape[1]
    k, v = (np.repeat(x, sharing, axis=1) for x in (k, v))
    scale = 1 / np.sqrt(size) if case.scale is None else case.scale
    scores = scale * (q @ k.mT)
    magnitude = abs(scale) * (np.abs(q) @ np.abs(k).mT)
    if case.mask is not None:
        added = np.where(case.mask, 0.0, HIDDEN) if case.mask.dtype == bool else case.mask
        scores = scores + added
        magnitude = magnitude + np.abs(np.where(np.isinf(added), 0, added))
    if case.causal:
        scores = np.where(np.tri(queries, keys, dtype=bool), scores, HIDDEN)
    highest = np.max(scores, -1, keepdims=True, initial=HIDDEN)
    highest = np.where(highest == HIDDEN, 0, highest)
    total = np.exp(scores - highest).sum(-1, keepdims=True)
    sums = np.where(total == 0, 0, highest + np.log(np.where(total == 0, 1, total)))
    weights = np.exp(scores - sums)
    out = stored(weights @ v)
    slopes = weights * (g @ v.mT - (g * out).sum(-1, keepdims=True))

    distance = np.minimum(np.abs(scores - sums), 88)
    seen = np.isfinite(scores)
    error = UNIT * ((size + 4) * magnitude + np.abs(sums) + distance) + EXPONENTIAL
    of_weights = np.where(seen, weights * np.expm1(error) + np.exp(-86.0), 0)
    product = np.abs(g) @ np.abs(v).mT + (np.abs(g) * np.abs(out)).sum(-1, keepdims=True)
    of_slopes = (of_weights + weights * UNIT * (size + 7)) * product * (1 + 1e-3)
    large = (weights + of_weights, np.abs(slopes) + of_slopes)

    def shared(x: Wide) -> Wide:
        return x.reshape(x.shape[0], -1, sharing, *x.shape[2:]).sum(2)

    dq = scale * (slopes @ k)
    dk = shared(scale * (slopes.mT @ q))
    dv = shared(weights.mT @ g)
    magnitudes = (
        abs(scale) * (large[1] @ np.abs(k)),
        abs(scale) * shared(large[1].mT @ np.abs(q)),
        shared(large[0].mT @ np.abs(g)),
    )
    terms = UNIT * (keys + 8), UNIT * (sharing * queries + 8)
    dq_bound = abs(scale) * (of_slopes @ np.abs(k)) + terms[0] * magnitudes[0]
    dk_bound = abs(scale) * shared(of_slopes.mT @ np.abs(q)) + terms[1] * magnitudes[1]
    dv_bound = shared(of_weights.mT @ np.abs(g)) + terms[1] * magnitudes[2]
    return Wanted(
        out,
        sums[..., 0].astype(np.float32),
        (dq, dk, dv),
        (dq_bound, dk_bound, dv_bound),
        magnitudes,
    )


def run(case: Case, threads: int = 2, wanted: Wanted | None = None) -> tuple[Any, ...]:
    wanted = wanted_of(case) if wanted is None else wanted
    return kernels.attention_backward(
        *(case.gradient, case.q, case.k, case.v, wanted.out, wanted.logsumexp),
        mask=case.mask,
        causal=case.causal,
        scale=case.scale,
        threads=threads,
    )


def check(case: Case, threads: int = 2) -> None:
    """Hold every element to the bound; NaN fails."""
    wanted = wanted_of(case)
    results = run(case, threads, wanted)
    for got, right, bound in zip(results, wanted.gradients, wanted.bounds, strict=True):
        assert got.shape == right.shape
        assert (np.abs(got - right) <= bound).all()


SIZES = [1, 2, 7, 13, 14, 15, 16, 17, 31, 32, 33, 47, 63, 65, 113, 127, 129, 130]


@pytest.mark.parametrize("causal", [False, True])
def test_odd_sizes(causal: bool) -> None:
    """Every size of the list as number of queries, of keys and of numbers, in turn."""
    for i, queries in enumerate(SIZES):
        keys, size = SIZES[(5 * i + 3) % len(SIZES)], SIZES[(7 * i + 5) % len(SIZES)]
        order = ((queries, keys, size), (keys, size, queries), (size, queries, keys))[i % 3]
        check(replace(draw(i, (2, 3, *order)), causal=causal), threads=1 + i % 3)


@pytest.mark.parametrize("causal", [False, True])
def test_several_blocks(causal: bool) -> None:
    for queries, keys in ((5, 257), (300, 300), (40, 600), (400, 130), (513, 60)):
        for threads in (1, 5):
            check(replace(draw(queries, (1, 2, queries, keys, 24)), causal=causal), threads)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(40, 150), (1, 150), (3, 40, 150), (2, 1, 1, 150), ()])
def test_masks_that_broadcast(shape: tuple[int, ...], causal: bool) -> None:
    case = replace(draw(2, (2, 3, 40, 150, 20)), causal=causal)
    random = np.random.default_rng(3)
    numbers = random.standard_normal(shape).astype(np.float32) * np.float32(3)
    seen = random.random(shape) < 0.7
    for mask in (numbers, seen, np.where(seen, numbers, np.float32(HIDDEN))):
        check(replace(case, mask=np.asarray(mask)))


@pytest.mark.parametrize("causal", [False, True])
def test_shared_heads(causal: bool) -> None:
    for shared in (1, 2, 3):
        check(replace(draw(4, (2, 6, 40, 150, 16), shared=shared), causal=causal))


@pytest.mark.parametrize("scale", [30.0, -30.0, 1e-4, 0.0])
def test_extreme_scores(scale: float) -> None:
    check(replace(draw(8, (1, 2, 50, 150, 1)), scale=scale))
    check(replace(draw(9, (1, 2, 50, 150, 3)), scale=scale, causal=True))


def test_queries_that_see_nothing_have_no_gradient() -> None:
    case = draw(6, (1, 2, 30, 150, 16))
    mask = np.ones((30, 150), bool)
    mask[[0, 7, 29]] = False
    mask[3, 5:] = False
    case = replace(case, mask=mask)
    check(case)
    assert (run(case)[0][:, :, [0, 7, 29]] == 0).all()


def test_a_row_of_the_lowest_number_weighs_all_keys_by_one() -> None:
    """Libraries hide keys by the lowest float32. The logsumexp cannot hold more, as in PyTorch."""
    case, lowest = draw(7, (1, 1, 5, 40, 16)), np.finfo(np.float32).min
    _, _, dv = kernels.attention_backward(
        *(case.gradient, case.q, case.k, case.v, case.q, np.full((1, 1, 5), lowest)),
        mask=np.full((5, 40), lowest),
    )
    every = np.tile(case.gradient[0, 0].sum(0), (40, 1))
    np.testing.assert_allclose(dv[0, 0], every, rtol=0, atol=5 * 5 * UNIT * 5)


def test_the_gradient_is_linear_and_of_its_batch_entry_alone() -> None:
    case = draw(10, (3, 2, 40, 150, 20))
    whole = run(case)
    doubled = run(replace(case, gradient=case.gradient * 2))
    for one, two in zip(whole, doubled, strict=True):
        np.testing.assert_array_equal(2 * one, two)
    struck = case.gradient.copy()
    struck[1, 1, 7, 3] = np.nan
    for one, two in zip(whole, run(replace(case, gradient=struck)), strict=True):
        assert np.isnan(two[1, 1]).any()
        np.testing.assert_array_equal(np.delete(one, 1, 0), np.delete(two, 1, 0))
        np.testing.assert_array_equal(one[1, 0], two[1, 0])


def test_a_hidden_nan_stays_hidden() -> None:
    """A query far behind sees no later key, and a key far behind is seen by no earlier query.

    Where tile registers compute a head, vectors compute one that has a NaN: other bits, within
    the bounds of both.
    """
    case = replace(draw(11, (1, 1, 100, 100, 20)), causal=True)
    usual, wanted = run(case), wanted_of(case)

    def hold(got: Values, which: int, at: slice) -> None:
        if kernels.isa() == "amx_bf16":
            far = np.abs(got[0, 0, at] - wanted.gradients[which][0, 0, at])
            assert (far <= wanted.bounds[which][0, 0, at]).all()
        else:
            np.testing.assert_array_equal(got[0, 0, at], usual[which][0, 0, at])

    v = case.v.copy()
    v[0, 0, 70] = np.nan
    dq = kernels.attention_backward(
        *(case.gradient, case.q, case.k, v, wanted.out, wanted.logsumexp),
        causal=True,
    )[0]
    hold(dq, 0, np.s_[:56])
    gradient = case.gradient.copy()
    gradient[0, 0, 30] = np.nan
    _, dk, dv = run(replace(case, gradient=gradient))
    for which, got in ((1, dk), (2, dv)):
        assert np.isnan(got[0, 0, :31]).all()
        hold(got, which, np.s_[45:])


@pytest.mark.long(every=3)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [1, 2])
def test_shared_heads_of_several_blocks(shared: int, causal: bool) -> None:
    """Each head of queries adds to the sums of each block of keys."""
    check(replace(draw(14, (2, 4, 287, 530, 61), shared=shared), causal=causal))
    check(replace(draw(14, (1, 4, 530, 287, 61), shared=shared), causal=causal))


@pytest.mark.parametrize("size", [1, 7, 33, 64])
def test_no_byte_behind_an_operand_is_touched(size: int) -> None:
    for queries, keys in ((1, 1), (15, 33), (29, 270), (127, 159)):
        case = draw(size, (1, 2, queries, keys, size))
        mask = np.random.default_rng(1).standard_normal((queries, keys), np.float32)
        for added in (None, mask):
            wanted = wanted_of(replace(case, mask=added))
            given = (case.gradient, case.q, case.k, case.v, wanted.out, wanted.logsumexp)
            results = [at_the_end(np.full_like(x, np.nan)) for x in given[1:4]]
            arrays = [
                *map(at_the_end, given),
                None if added is None else at_the_end(added),
                *results,
            ]
            by_plan(arrays, 1 / np.sqrt(size))
            expected = kernels.attention_backward(*given, mask=added)
            for got, one in zip(results, expected, strict=True):
                np.testing.assert_array_equal(got, one)


def by_plan(arrays: list[Values | None], scale: float) -> None:
    plan = kernels.AttentionBackwardPlan(
        [None if x is None else x.shape for x in arrays],
        [None if x is None else [s // 4 for s in x.strides] for x in arrays],
        scale=scale,
        threads=2,
    )
    plan.run([0 if x is None else x.ctypes.data for x in arrays])


def test_strides_and_what_lies_between() -> None:
    """Heads beside one another, and gaps. Nothing beside the results is written."""
    case = draw(15, (2, 3, 45, 45, 21))
    wanted = wanted_of(case)
    usual = run(case)

    def apart(x: Values) -> tuple[Values, Values]:
        frame = np.full((2, 47, 3, 25), 7, np.float32)
        view = frame[:, 1:46, :, 2:23].swapaxes(1, 2)
        view[...] = x
        return frame, view

    given = [apart(x)[1] for x in (case.gradient, case.q, case.k, case.v, wanted.out)]
    sums = np.full((2, 45, 3), 7, np.float32).swapaxes(1, 2)
    sums[...] = wanted.logsumexp
    results = [apart(np.full(case.q.shape, np.nan, np.float32)) for _ in range(3)]
    by_plan([*given, sums, None, *(view for _, view in results)], 1 / np.sqrt(21))
    for (frame, view), one in zip(results, usual, strict=True):
        np.testing.assert_array_equal(view, one)
        view[...] = 7
        assert (frame == 7).all()


def test_the_number_of_threads_changes_no_bit() -> None:
    """Not even if some heads are too far from 1, or NaN, to be split into parts."""
    case = replace(draw(3, (2, 2, 287, 300, 61)), causal=True)
    case.k[0, 1, 60:] *= np.float32(1e-30)
    case.gradient[1, 0, 5, 5] = np.nan
    wanted = run(case, 1)
    for threads in (2, 3, 8):
        for one, other in zip(run(case, threads), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("axis", range(5))
def test_nothing_to_attend_to(axis: int) -> None:
    shape = [2, 3, 5, 6, 4]
    shape[axis] = 0
    case = draw(16, (shape[0], shape[1], shape[2], shape[3], shape[4]))
    sums = np.zeros(case.q.shape[:3], np.float32)
    got = kernels.attention_backward(case.gradient, case.q, case.k, case.v, case.q, sums, scale=1.0)
    for one, like in zip(got, (case.q, case.k, case.v), strict=True):
        assert one.shape == like.shape
        assert (one == 0).all()


def test_what_does_not_fit_is_refused() -> None:
    case = draw(0, (1, 2, 5, 6, 4))
    sums = np.zeros((1, 2, 5), np.float32)
    good = {"gradient": case.gradient, "q": case.q, "k": case.k, "v": case.v, "out": case.q}
    for name, wrong, words in (
        ("gradient", case.gradient[:, :, :4], "gradient: expected shape"),
        ("gradient", case.gradient.repeat(2, 3)[..., ::2], "gradient: expected the numbers"),
        ("v", case.v.astype(np.float64), "v: expected"),
        ("out", case.q[:, :1], "out: expected shape"),
        ("logsumexp", sums[:, :, :4], "logsumexp: expected shape"),
        ("mask", np.zeros((4, 6), np.float32), "mask: expected a shape"),
        ("scale", np.nan, "scale: expected a finite number"),
    ):
        with pytest.raises(KernelError, match=words):
            kernels.attention_backward(**{**good, "logsumexp": sums, name: wrong})
    with pytest.raises(KernelError, match="expected one for each of gradient, q"):
        kernels.AttentionBackwardPlan([], [], scale=1.0)
    plan = kernels.AttentionBackwardPlan(
        [*([(1, 1, 1, 1)] * 5), (1, 1, 1), None, *([(1, 1, 1, 1)] * 3)],
        [*([(1, 1, 1, 1)] * 5), (1, 1, 1), None, *([(1, 1, 1, 1)] * 3)],
        scale=1.0,
    )
    for addresses in ([], [1.5] * 10, [1] * 10):
        with pytest.raises(KernelError, match="addresses: expected"):
            plan.run(addresses)  # type: ignore[arg-type]  # floats are part of the test
