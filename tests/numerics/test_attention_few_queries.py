"""Attention of few queries: nothing is packed. Bounds as in test_attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_attention import HIDDEN, Heads, check, draw

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
