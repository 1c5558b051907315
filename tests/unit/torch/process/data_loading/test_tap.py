"""The order of an epoch, drawn through gates."""

from __future__ import annotations

from itertools import islice

import pytest

from bestof.torch.process.data_loading.tap import Gate, Tap


def test_gates_share_one_order() -> None:
    tap = Tap(iter(range(7)))
    first, second = Gate(tap), Gate(tap)
    assert list(islice(first, 3)) == [0, 1, 2]
    first.closed = True
    assert list(first) == []
    assert list(second) == [3, 4, 5, 6]
    assert tap.dry


def test_undelivered_batches_come_first_again_in_order() -> None:
    tap = Tap(iter(range(7)))
    gate = Gate(tap)
    assert list(islice(gate, 5)) == [0, 1, 2, 3, 4]
    assert [gate.delivered(), gate.delivered()] == [0, 1]
    gate.give_back()
    assert tap.has_returned
    with pytest.raises(StopIteration):
        next(gate)
    assert list(Gate(tap)) == [2, 3, 4, 5, 6]


def test_a_gate_closes_behind_one_more() -> None:
    gate = Gate(Tap(iter(range(7))))
    gate.close_after_one()
    assert list(gate) == [0]
