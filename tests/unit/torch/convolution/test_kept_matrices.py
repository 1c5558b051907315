"""Kept matrices end with their tensors, and never serve another tensor."""

from __future__ import annotations

import threading

import numpy
import pytest
import torch
from torch import Tensor

from bestof.torch.ops.convolution.kept_matrices import KeptMatrices


def matrix(number: float = 1.0, elements: int = 4) -> Tensor:
    return torch.full((elements,), number)


def test_a_matrix_is_taken_once() -> None:
    kept, source, lowered = KeptMatrices(), torch.zeros(3), matrix()
    kept.keep(source, "g", lowered)
    assert kept.size == 16
    assert kept.take(source, "g") is lowered
    assert kept.take(source, "g") is None
    assert len(kept) == 0


def test_it_leaves_with_its_source() -> None:
    kept, source = KeptMatrices(), torch.zeros(3)
    kept.keep(source, "g", matrix())
    kept.keep(source, "h", matrix())
    assert len(kept) == 2
    del source
    assert len(kept) == 0


def test_a_view_of_living_memory_leaves_too() -> None:
    kept, dataset = KeptMatrices(), torch.zeros(100)
    for start in range(0, 100, 10):
        kept.keep(dataset[start : start + 10], "g", matrix())
    assert len(kept) == 0


def test_another_view_of_the_same_memory_finds_it() -> None:
    """Each pass of a 1-D convolution makes a view of its own."""
    kept, line, lowered = KeptMatrices(), torch.zeros(2, 3, 4), matrix()
    kept.keep(line.unsqueeze(2), "g", lowered)
    assert kept.take(line.view(2, 4, 1, 3), "g") is None  # other elements side by side
    assert kept.take(line.unsqueeze(2), "g") is lowered
    kept.keep(line.unsqueeze(2), "g", lowered)
    del line
    assert len(kept) == 0


def test_a_tensor_that_has_got_the_memory_of_another_one_gets_nothing() -> None:
    kept, memory = KeptMatrices(), numpy.zeros(3, numpy.float32)
    source = torch.from_numpy(memory)
    kept.keep(source, "g", matrix())
    other = torch.from_numpy(memory)  # the same address, and a storage of its own
    assert other.data_ptr() == source.data_ptr()
    assert kept.take(other, "g") is None


def test_geometries_are_distinguished() -> None:
    kept, source = KeptMatrices(), torch.zeros(3)
    for dilation in (1, 2):
        kept.keep(source, dilation, matrix(dilation))
    found = kept.take(source, 1), kept.take(source, 2)
    assert [None if one is None else one[0].item() for one in found] == [1.0, 2.0]


def test_a_changed_source_gets_nothing() -> None:
    kept, source = KeptMatrices(), torch.zeros(3)
    kept.keep(source, "g", matrix())
    source.add_(1)
    assert kept.take(source, "g") is None


def test_a_source_changed_through_data_gets_nothing() -> None:
    kept, source = KeptMatrices(), torch.full((3,), 1e8)
    kept.keep(source, "g", matrix())
    source.data[1] = torch.nextafter(source[1], torch.tensor(2e8))
    assert kept.take(source, "g") is None


def test_a_source_that_is_not_dense_is_not_kept() -> None:
    kept, source = KeptMatrices(), torch.zeros(4, 6)[:, ::2]
    kept.keep(source, "g", matrix())
    assert len(kept) == 0


def test_what_is_kept_last_counts_and_dropping_forgets() -> None:
    kept, source = KeptMatrices(), torch.zeros(3)
    kept.keep(source, "g", matrix(1))
    kept.keep(source, "g", matrix(2))
    found = kept.take(source, "g")
    assert found is not None
    assert found[0].item() == 2
    kept.keep(source, "g", matrix())
    kept.drop(source, "g")
    assert kept.take(source, "g") is None


def test_the_oldest_leave_beyond_the_limit() -> None:
    kept = KeptMatrices(limit=40)
    sources = [torch.zeros(3) for _ in range(4)]
    for source in sources:
        kept.keep(source, "g", matrix())
        assert kept.size <= 40
    assert [kept.take(source, "g") is not None for source in sources] == [False, False, True, True]


def test_a_matrix_beyond_the_limit_is_not_kept_and_displaces_nothing() -> None:
    kept, source = KeptMatrices(limit=40), torch.zeros(3)
    kept.keep(source, "g", matrix())
    kept.keep(source, "h", matrix(elements=11))
    assert kept.take(source, "h") is None
    assert kept.take(source, "g") is not None


def test_an_inference_tensor_has_no_backward_pass() -> None:
    kept = KeptMatrices()
    with torch.inference_mode():
        source = torch.zeros(3)
    kept.keep(source, "g", matrix())
    assert len(kept) == 0


def test_many_threads() -> None:
    kept = KeptMatrices(limit=4000)
    wrong = []

    def work(number: int) -> None:
        for step in range(300):
            source = torch.zeros(1)
            kept.keep(source, "g", matrix(number * 1000 + step))
            found = kept.take(source, "g")
            if found is not None and found[0].item() != number * 1000 + step:
                wrong.append(found)
            kept.keep(source, "g", matrix())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(kept) == 0


@pytest.mark.parametrize("shares", [False, True])
def test_a_matrix_whose_backward_pass_never_comes_leaves(shares: bool) -> None:
    """After an exception between the passes of a program that reuses the memory of its batches."""
    kept, batch = KeptMatrices(), torch.zeros(3)
    left, other, later = batch.detach(), batch.view(1, 3), batch.view(3, 1)
    kept.keep(left, "a", matrix())
    for number in range(300):
        assert number > 256 or len(kept) > 0, "a network may have as many layers"
        if shares:  # each step makes a matrix, and takes it
            kept.keep(other, "b", matrix())
            assert kept.take(other, "b") is not None
        else:
            kept.drop(later, "a" if number % 3 else "b")
    assert len(kept) == 0
