"""The runs towards the ceilings of the machine."""

from __future__ import annotations

from bestof.bench import machine


def test_a_copy_copies_and_returns_the_bytes_it_moves() -> None:
    for copy in machine.copies(2).values():
        copy.call()
        assert copy.work == 2 * 4 * (1 << 24)
    assert machine.multiply_adds().work > 0
