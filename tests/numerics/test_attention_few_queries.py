"""Attention of few queries, float32 and bfloat16: nothing is packed. Bounds as in test_attention.

The operands of bfloat16 are exact numbers, and sums are float32: only the result is rounded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bfloat16 import UNIT, rounded, value_of
from test_attention import HIDDEN, Heads, check, draw, wanted_of

from bestof import kernels
from bestof.errors import KernelError

SHAPES = (  # batch, heads, queries, keys, size; shared heads
    ((1, 1, 1, 1, 1), 1),
    ((2, 3, 1, 300, 64), 3),
    ((1, 6, 1, 17, 80), 2),
    ((2, 5, 1, 257, 7), 1),
    ((1, 8, 2, 511, 128), 4),
    ((1, 4, 3, 256, 33), 4),
    ((3, 4, 4, 5, 130), 2),
    ((1, 2, 4, 0, 16), 2),
)


def masked(heads: Heads, seed: int) -> Heads:
    """Add a mask for each key that hides some, and all of one head's if there are several."""
    random = np.random.default_rng(seed)
    (batch, count, _, _), keys = heads.q.shape, heads.k.shape[2]
    mask = random.standard_normal((batch, count, 1, keys), np.float32)
    mask[random.random(mask.shape) < 0.3] = HIDDEN
    mask[:, 1:2] = HIDDEN
    return replace(heads, mask=mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shape", "shared"), SHAPES, ids=str)
def test_float32(shape: tuple[int, int, int, int, int], shared: int, causal: bool) -> None:
    heads = replace(draw(sum(shape), shape, shared=shared), causal=causal)
    for threads in (1, 3):
        check(heads, threads)
        check(masked(heads, threads), threads)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shape", "shared"), SHAPES, ids=str)
def test_bfloat16(shape: tuple[int, int, int, int, int], shared: int, causal: bool) -> None:
    plain = replace(draw(sum(shape), shape, shared=shared), causal=causal)
    for heads in (plain, masked(plain, 5)):
        q, k, v = map(rounded, (heads.q, heads.k, heads.v))
        wanted = wanted_of(replace(heads, q=value_of(q), k=value_of(k), v=value_of(v)))
        bound = wanted.out_bound * (1 + UNIT) + UNIT * np.abs(wanted.out)
        for threads in (1, 3):
            out = np.full(q.shape, 0x7FC0, np.uint16)  # NaN
            sums = np.full(q.shape[:3], np.nan, np.float32)
            kernels.attention(
                *(q, k, v),
                mask=heads.mask,
                causal=causal,
                out=out,
                logsumexp=sums,
                dtype="bfloat16",
                threads=threads,
            )
            assert (np.abs(value_of(out) - wanted.out) <= bound).all()
            assert (np.abs(sums - wanted.logsumexp) <= wanted.logsumexp_bound).all()


def test_strides_of_a_cache_of_tokens() -> None:
    """Keys and values of a cache that holds the heads of a token side by side."""
    heads = draw(3, (2, 4, 1, 100, 40), shared=2)
    k, v = (np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in (heads.k, heads.v))
    check(replace(heads, k=k, v=v))


def test_nan_reaches_its_own_query_only() -> None:
    heads = draw(4, (1, 4, 2, 40, 16), shared=2)
    heads.q[0, 1, 1, 3] = np.nan
    out, _ = heads.run()
    is_nan = np.isnan(out).any(-1)
    assert is_nan.tolist() == [[[False, False], [False, True], [False, False], [False, False]]]


def test_bfloat16_has_few_queries() -> None:
    q = np.zeros((1, 1, kernels.FEW_QUERIES + 1, 8), np.uint16)
    with pytest.raises(KernelError, match="at most 4 queries of bfloat16; got 5"):
        kernels.attention(q, q, q, dtype="bfloat16")
    with pytest.raises(KernelError, match="expected float32"):
        kernels.attention(q[:, :, :1], q, q)
