"""The order of an epoch, drawn through gates."""

from __future__ import annotations

from itertools import islice

import pytest

from bestof.torch.process.data_loading.sample_order import Gate, SampleOrder


def test_gates_share_one_order() -> None:
    order = SampleOrder(iter(range(7)))
    first, second = Gate(order), Gate(order)
    assert list(islice(first, 3)) == [0, 1, 2]
    first.closed = True
    assert list(first) == []
    assert list(second) == [3, 4, 5, 6]
    assert order.dry


def test_undelivered_batches_come_first_again_in_order() -> None:
    order = SampleOrder(iter(range(7)))
    gate = Gate(order)
    assert list(islice(gate, 5)) == [0, 1, 2, 3, 4]
    assert [gate.delivered(), gate.delivered()] == [0, 1]
    gate.give_back()
    assert order.has_returned
    with pytest.raises(StopIteration):
        next(gate)
    assert list(Gate(order)) == [2, 3, 4, 5, 6]


def test_a_gate_closes_behind_one_more() -> None:
    gate = Gate(SampleOrder(iter(range(7))))
    gate.close_after_one()
    assert list(gate) == [0]
