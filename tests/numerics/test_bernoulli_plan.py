"""Bernoulli numbers against the same words of another implementation of the Mersenne twister."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from guarded import address, guarded
from numpy.typing import NDArray

from bestof.errors import KernelError
from bestof.kernels import BernoulliPlan
from bestof.kernels.bernoulli import DTYPES

WORDS = 624
COUNTS = (0, 1, 2, 7, 155, 156, 311, 312, 313, 623, 624, 625, 5000)
DRAWN = (0, 1, 2, 311, 622, 623, 624, 625)  # words, before the call
BITS: dict[str, tuple[type, int]] = {
    "float32": (np.uint32, 0x3F800000),
    "float64": (np.uint64, 0x3FF0000000000000),
    "bfloat16": (np.uint16, 0x3F80),
    "float16": (np.uint16, 0x3C00),
}


def state_of(words: NDArray[np.uint32], drawn: int) -> NDArray[np.uint64]:
    """Return the state of a torch.Generator that has drawn so many words of this block."""
    unread = WORDS - drawn
    head = np.array([7, (1 << 32) | (unread + 1), drawn % WORDS], np.uint64)  # left, seeded
    return np.concatenate([head, words.astype(np.uint64)])


def twister(drawn: int) -> tuple[np.random.MT19937, NDArray[np.uint64]]:
    """Return NumPy's twister after so many words, and its state as PyTorch keeps it."""
    found = np.random.MT19937(3)
    if drawn:
        found.random_raw(drawn)
    return found, state_after(found)


def state_after(found: np.random.MT19937) -> NDArray[np.uint64]:
    state: Any = found.state["state"]
    return state_of(state["key"], int(state["pos"]))


def drawn_by(found: np.random.MT19937, count: int, probability: float) -> NDArray[np.bool_]:
    """Return whether the 53 bits of each number, times 2^-53, are less than a probability."""
    words = found.random_raw(2 * count) if count else np.empty(0, np.uint64)
    high, low = words[::2] & np.uint64(0x1FFFFF), words[1::2]
    numbers = (high << np.uint64(32) | low).astype(np.float64) * 2.0**-53
    return numbers < probability


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("drawn", DRAWN)
def test_numbers_and_state(drawn: int, dtype: str) -> None:
    bits, one = BITS[dtype]
    for count in COUNTS:
        for probability in (0.0, 2.0**-53, 0.1, 0.5, 0.9, 1.0 - 2.0**-53, 1.0):
            reference, state = twister(drawn)
            after = state.copy()
            with guarded(count, dtype=bits) as out:
                plan = BernoulliPlan(count, probability, dtype=dtype)
                plan.run(address(after), address(out), address(after))
                right = drawn_by(reference, count, probability)
                np.testing.assert_array_equal(out, np.where(right, bits(one), bits(0)))
            expected = state_after(reference) if count else state
            # A state of which no word is left begins where the next one does.
            np.testing.assert_array_equal(after[3:], expected[3:])
            np.testing.assert_array_equal(after[:2], expected[:2])
            assert after[2] % WORDS == expected[2]


def test_the_state_before_is_left_alone() -> None:
    _, state = twister(5)
    before, after, out = state.copy(), np.zeros_like(state), np.empty(1000, np.float32)
    BernoulliPlan(1000, 0.5).run(address(state), address(out), address(after))
    np.testing.assert_array_equal(state, before)
    assert (after[3:] != before[3:]).any()


def test_a_number_that_hits_the_probability_is_zero() -> None:
    """It is 1 if it is less than the probability, and numbers have 53 bits."""
    reference, state = twister(0)
    high, low = (int(word) for word in reference.random_raw(2))
    number = ((high & 0x1FFFFF) << 32 | low) * 2.0**-53
    after = state.copy()
    out = np.empty(1, np.float32)
    for probability, right in ((number, 0.0), (np.nextafter(number, 1.0), 1.0)):
        plan = BernoulliPlan(1, float(probability))
        plan.run(address(state), address(out), address(after))
        assert out[0] == right


def test_invalid_plans() -> None:
    for count in (-1, 2**41):
        with pytest.raises(KernelError, match="count: expected"):
            BernoulliPlan(count, 0.5)
    for probability in (-0.1, 1.1, float("nan")):
        with pytest.raises(KernelError, match="probability: expected 0 to 1"):
            BernoulliPlan(1, probability)
    with pytest.raises(KernelError, match=r"dtype: expected one of float32, .* got 'bool'"):
        BernoulliPlan(1, 0.5, dtype="bool")
