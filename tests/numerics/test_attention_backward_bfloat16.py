"""The gradients of attention of bfloat16 against float64, element by element.

The operands are exact numbers, and products and sums are of float32. So bounds are those of
test_attention_backward, and the gradients are rounded once more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from bfloat16 import UNIT, Bits, rounded, value_of
from fenced_memory import at_the_end
from numpy.typing import NDArray
from test_attention_backward import HIDDEN, Case, Values, Wanted, Wide, draw, wanted_of

from bestof import kernels

NAN = 0x7FC0


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
    for got, right, bound in zip(results, wanted.gradients, wanted.bounds, strict=True):
        assert got.shape == right.shape
        assert (np.abs(got - right) <= bound * (1 + UNIT) + UNIT * np.abs(right)).all()


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


@pytest.mark.parametrize("axis", range(5))
def test_nothing_to_attend_to(axis: int) -> None:
    shape = [2, 3, 5, 6, 4]
    shape[axis] = 0
    case = draw(16, (shape[0], shape[1], shape[2], shape[3], shape[4]))
    bits = [rounded(x) for x in (case.gradient, case.q, case.k, case.v, case.q)]
    results = [np.full(x.shape, NAN, np.uint16) for x in bits[1:4]]
    Call([*bits, np.zeros(case.q.shape[:3], np.float32), None], results).run(case, 2)
    assert all((x == 0).all() for x in results)
