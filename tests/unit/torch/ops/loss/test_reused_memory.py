"""Memory that is lent to one tensor after another."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import bestof.torch as bt
from bestof.torch.ops.loss import reused_memory as module
from bestof.torch.ops.loss.reused_memory import ReusedMemory

LIKE = torch.empty(3, 50)


@pytest.fixture(autouse=True)
def every_size_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_BYTES", 0)


def test_freed_memory_is_lent_again() -> None:
    memory = ReusedMemory()
    first = memory.empty_like(LIKE)
    assert first.shape == LIKE.shape
    assert first.dtype is torch.float32
    place = first.data_ptr()
    del first
    assert memory.empty_like(LIKE[:2]).data_ptr() == place  # a smaller one fits


def test_memory_that_a_view_still_uses_is_not_lent() -> None:
    memory = ReusedMemory()
    first = memory.empty_like(LIKE).fill_(7)
    view = first[1:].view(-1)
    del first
    second = memory.empty_like(LIKE).fill_(-1)
    assert (view == 7).all()
    assert (second == -1).all()


def test_one_block_is_kept_and_it_is_the_larger() -> None:
    memory = ReusedMemory()
    small, large = memory.empty_like(LIKE[:1]), memory.empty_like(LIKE)
    place = large.data_ptr()
    del large, small
    assert len(memory._free) == 1
    assert memory.empty_like(LIKE).data_ptr() == place


def test_a_block_that_is_too_small_is_replaced() -> None:
    memory = ReusedMemory()
    memory.empty_like(LIKE[:1])
    assert memory.empty_like(LIKE).fill_(3).sum() == 3 * LIKE.numel()


def test_small_tensors_take_the_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LEAST_BYTES", 4 * LIKE.numel() + 1)
    memory = ReusedMemory()
    memory.empty_like(LIKE)
    assert not memory._free


def test_threads_never_share_a_block() -> None:
    memory = ReusedMemory()
    wrong = []

    def work(value: int) -> None:
        for _ in range(200):
            own = memory.empty_like(LIKE).fill_(value)
            if not (own == value).all():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_block_that_is_taken_meanwhile_is_not_put_back() -> None:
    """Another thread takes the free block while one comes back."""
    memory = ReusedMemory()
    small, large = memory.empty_like(LIKE[:1]), memory.empty_like(LIKE)
    del large

    class Block(np.ndarray):  # type: ignore[type-arg]
        def __len__(self) -> int:
            taken.append(memory.empty_like(LIKE))
            return self.size

    taken: list[torch.Tensor] = []
    memory._take_back(np.empty(1, np.float32).view(Block))
    del small
    lent = [*taken, *(memory.empty_like(LIKE) for _ in range(3))]
    assert len({one.data_ptr() for one in lent}) == len(lent) >= 4


def test_a_kept_gradient_of_the_focal_loss_stays_as_it_is() -> None:
    x = torch.linspace(-2, 2, 3 * 50).view(3, 50).requires_grad_()
    targets = torch.zeros(3, 50)
    bt.sigmoid_focal_loss(x, targets, reduction="sum").backward()
    first = x.grad
    assert first is not None
    kept = first.clone()
    x.grad = None
    bt.sigmoid_focal_loss(x, 1 - targets, reduction="sum").backward()
    assert torch.equal(first, kept)
    x.grad = None
    del first
    bt.sigmoid_focal_loss(x, targets, reduction="sum").backward()
    assert x.grad is not None
    assert torch.equal(x.grad, kept)
