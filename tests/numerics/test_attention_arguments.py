"""What attention refuses before it writes, plans, and the memory around the operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fenced_memory import at_the_end
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError

Values = NDArray[np.float32]


@pytest.mark.parametrize("size", [1, 7, 16, 33, 64, 70])
def test_no_byte_behind_an_operand_is_touched(size: int) -> None:
    random = np.random.default_rng(size)
    for queries, keys in ((1, 1), (15, 33), (29, 270)):
        q, k, v, mask = (
            random.standard_normal(shape, np.float32)
            for shape in (
                (1, 2, queries, size),
                (1, 2, keys, size),
                (1, 2, keys, size),
                (queries, keys),
            )
        )
        for added in (None, mask):
            fenced = [at_the_end(x) for x in (q, k, v)]
            out = at_the_end(np.full_like(q, np.nan))
            sums = at_the_end(np.full((1, 2, queries), np.nan, np.float32))
            kernels.attention(
                *fenced,
                mask=None if added is None else at_the_end(added),
                out=out,
                logsumexp=sums,
                threads=2,
            )
            np.testing.assert_array_equal(out, kernels.attention(q, k, v, mask=added))
            assert np.isfinite(sums).all()


@pytest.mark.parametrize("size", [7, 33, 64, 70])
def test_the_number_of_threads_changes_no_bit(size: int) -> None:
    random = np.random.default_rng(size)
    q = random.standard_normal((1, 2, 29, size), np.float32)
    k, v = (random.standard_normal((1, 2, 270, size), np.float32) for _ in range(2))
    wanted = kernels.attention(q, k, v, threads=1)
    for threads in (2, 3, 8):
        np.testing.assert_array_equal(kernels.attention(q, k, v, threads=threads), wanted)


def test_the_number_of_threads_changes_no_bit_under_a_causal_mask() -> None:
    random = np.random.default_rng(700)
    q, k, v = (random.standard_normal((1, 1, 700, 33), np.float32) for _ in range(3))
    wanted = kernels.attention(q, k, v, causal=True, threads=1)
    for threads in (2, 3, 8):
        found = kernels.attention(q, k, v, causal=True, threads=threads)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("masks", [False, True])
def test_plans(masks: bool) -> None:
    random = np.random.default_rng(0)
    q = random.standard_normal((2, 3, 20, 16), np.float32)
    k, v = (random.standard_normal((2, 1, 40, 16), np.float32) for _ in range(2))
    mask = random.standard_normal((20, 40), np.float32) if masks else None
    wanted_sums = np.full((2, 3, 20), np.nan, np.float32)
    wanted = kernels.attention(q, k, v, mask=mask, scale=0.2, logsumexp=wanted_sums)
    out, sums = np.full_like(wanted, np.nan), np.full_like(wanted_sums, np.nan)
    operands = (q, k, v, out, mask, sums)
    shapes = [None if x is None else x.shape for x in operands]
    strides = [None if x is None else [step // 4 for step in x.strides] for x in operands]
    plan = kernels.AttentionPlan(shapes, strides, scale=0.2, threads=2)
    addresses = [0 if x is None else x.ctypes.data for x in operands]
    plan.run(*addresses)
    np.testing.assert_array_equal(out, wanted)
    np.testing.assert_array_equal(sums, wanted_sums)
    with pytest.raises(KernelError, match="addresses: expected a mask"):
        plan.run(*addresses[:4], 0 if masks else addresses[0], addresses[5])
    with pytest.raises(KernelError, match="addresses: expected a mask"):
        plan.run(*addresses[:5], 0)
    for wrong in (q, -1, "a"):
        with pytest.raises(KernelError, match="addresses: expected integers"):
            plan.run(wrong, *addresses[1:])  # type: ignore[arg-type]


DENSE = (24, 12, 4, 1)


@pytest.mark.parametrize(
    ("message", "shape", "strides", "sums", "sums_strides"),
    [
        ("q: expected as many strides", (1, 2, 3, 4), (24, 12, 4), None, None),
        ("q: expected integers", (1, 2, 3.5, 4), DENSE, None, None),
        ("out: expected elements", (1, 2, 3, 4), (24, 4, 4, 1), None, None),
        ("logsumexp: expected shape", (1, 2, 3, 4), DENSE, (1, 2), (2, 1)),
        ("logsumexp: expected elements", (1, 2, 3, 4), DENSE, (1, 2, 3), (6, 1, 1)),
    ],
)
def test_plans_that_are_refused(
    message: str, shape: Any, strides: Any, sums: Any, sums_strides: Any
) -> None:
    with pytest.raises(KernelError, match=message):
        kernels.AttentionPlan(
            [*[shape] * 4, None, sums], [*[strides] * 4, None, sums_strides], scale=1.0
        )
    with pytest.raises(KernelError, match="expected one for each of q, k, v"):
        kernels.AttentionPlan([shape] * 5, [strides] * 5, scale=1.0)


def ones(*shape: int) -> Values:
    return np.ones(shape, np.float32)


GIVEN = (ones(1, 2, 3, 4), ones(1, 2, 5, 4), ones(1, 2, 5, 4))


@pytest.mark.parametrize(
    ("message", "arguments", "options"),
    [
        ("q: expected shape", (ones(3, 4), *GIVEN[1:]), {}),
        ("q: expected float32", (GIVEN[0].astype(np.float64), *GIVEN[1:]), {}),
        ("k: expected the batch", (GIVEN[0], ones(2, 2, 5, 4), ones(2, 2, 5, 4)), {}),
        ("k: expected the batch", (GIVEN[0], ones(1, 2, 5, 3), ones(1, 2, 5, 3)), {}),
        ("k: expected the batch", (GIVEN[0], ones(1, 3, 5, 4), ones(1, 3, 5, 4)), {}),
        ("k: expected the batch", (GIVEN[0], ones(1, 0, 5, 4), ones(1, 0, 5, 4)), {}),
        ("v: expected shape", (*GIVEN[:2], ones(1, 2, 6, 4)), {}),
        ("k: expected the numbers", (GIVEN[0], ones(1, 2, 5, 8)[..., ::2], GIVEN[2]), {}),
        ("q: expected an array", ([1.0], *GIVEN[1:]), {}),
        ("mask: expected a shape", GIVEN, {"mask": ones(5, 3)}),
        ("mask: expected a shape", GIVEN, {"mask": ones(1, 1, 1, 3, 5)}),
        ("mask: expected float32", GIVEN, {"mask": ones(3, 5).astype(np.int32)}),
        ("causal: expected", GIVEN, {"causal": 1}),
        ("scale: expected a finite", GIVEN, {"scale": float("nan")}),
        ("scale: expected a number", GIVEN, {"scale": "a"}),
        ("threads: expected", GIVEN, {"threads": -1}),
        ("out: expected shape", GIVEN, {"out": ones(1, 2, 5, 4)}),
        ("out: expected the numbers", GIVEN, {"out": ones(1, 2, 4, 3).swapaxes(2, 3)}),
        (
            "out: expected elements",
            GIVEN,
            {"out": as_strided(ones(20), (1, 2, 3, 4), (4, 32, 8, 4))},
        ),
        ("logsumexp: expected shape", GIVEN, {"logsumexp": ones(1, 3, 2)}),
    ],
)
def test_what_is_refused(
    message: str, arguments: tuple[object, ...], options: dict[str, Any]
) -> None:
    with pytest.raises(KernelError, match=message):
        kernels.attention(*arguments, **options)


def test_results_have_memory_of_their_own() -> None:
    q, k, v = (ones(1, 2, 3, 4) for _ in range(3))
    for name, given in {"q": q, "k": k, "v": v}.items():
        with pytest.raises(KernelError, match=f"it overlaps {name}"):
            kernels.attention(q, k, v, out=given)
        with pytest.raises(KernelError, match=f"it overlaps {name}"):
            kernels.attention(q, k, v, logsumexp=given.reshape(1, 2, 12)[..., :3])
    out = ones(1, 2, 3, 4)
    with pytest.raises(KernelError, match="it overlaps mask"):
        kernels.attention(q, k, v, out=out, mask=out[0, 0, :, :3])
    with pytest.raises(KernelError, match=r"logsumexp: .* it overlaps out"):
        kernels.attention(q, k, v, out=out, logsumexp=out[..., 0])
    locked = ones(1, 2, 3, 4)
    locked.flags.writeable = False
    with pytest.raises(KernelError, match="out: expected a writeable"):
        kernels.attention(q, k, v, out=locked)
    assert all((x == 1).all() for x in (q, k, v, out))
