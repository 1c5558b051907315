"""The runs towards the ceilings of the machine."""

from __future__ import annotations

import pytest

from bestof.bench import machine
from bestof.processors import Processors


def test_a_copy_copies_and_returns_the_bytes_it_moves() -> None:
    for copy in machine.copies(2).values():
        copy.call()
        assert copy.work == 2 * 4 * (1 << 24)
    assert machine.multiply_adds().work > 0


@pytest.mark.parametrize("text", ["", "many", "0"])
def test_openmp_has_a_thread_for_each_processor_that_the_process_may_use(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    monkeypatch.setattr(machine, "processors", lambda: Processors(frozenset({2, 5, 7})))
    assert machine.openmp_threads() == 3


@pytest.mark.parametrize("text", ["4", " 4 ", "4,2"])
def test_openmp_has_the_threads_that_the_environment_names(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert machine.openmp_threads() == 4
