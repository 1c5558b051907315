"""The ceilings of the machine, by a clock that the test winds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bestof.bench import machine
from bestof.bench.machine import Ceiling, measure_peaks
from bestof.errors import InvalidArgument


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Each run takes the next of its times; the first one is the call that does not count."""
    now = 0.0

    def run(times: list[float]) -> Callable[[], object]:
        left = iter(times)

        def call() -> None:
            nonlocal now
            now += next(left)

        return call

    monkeypatch.setattr(machine, "multiply_adds", lambda: Ceiling(run([0.1, 4.0, 2.0, 8.0]), 6e9))
    copies = {
        "memcpy": Ceiling(run([0.1, 3.0, 2.0, 5.0]), 8e9),
        "kernels": Ceiling(run([0.1, 1.0, 9.0, 9.0]), 8e9),
    }
    monkeypatch.setattr(machine, "copies", lambda: copies)
    return lambda: now


def test_the_ceilings_are_the_best_rounds_and_the_faster_copy(
    clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    peaks = measure_peaks(repeats=3, clock=clock)
    assert (peaks.flops, peaks.bandwidth, peaks.threads) == (3e9, 8e9, 3)
    assert peaks.isa


def test_a_copy_copies_and_tells_what_it_moves() -> None:
    for copy in machine.copies(2).values():
        copy.call()
        assert copy.work == 2 * 4 * (1 << 24)
    assert machine.multiply_adds().work > 0


def test_no_repeats_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="expected at least 1; got 0"):
        measure_peaks(repeats=0)
