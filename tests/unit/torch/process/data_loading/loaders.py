"""Datasets for the tests of data loading; at module level, so that spawned workers find them."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Numbers(Dataset[Any]):
    """Item i is i."""

    def __init__(self, size: int = 300) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Augmented(Numbers):
    """Item i is i and a random number of each generator."""

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(()), numpy.random.random(), random.random()


class Raises(Numbers):
    """Raises for one item, wherever it is fetched."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 123:
            raise KeyError("no item 123")
        return torch.tensor(index)


class RaisesInWorkers(Numbers):
    """Cannot be used in a worker, as a file handle that was opened before the fork."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is not None:
            raise OSError("the file handle does not survive a fork")
        return torch.tensor(index)


class DiesInWorkers(Numbers):
    """Takes its worker along, as one that finds no shared memory, or is killed for its memory."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is not None and index > 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(index)


class Stream(IterableDataset[Any]):
    """Numbers in order; workers share them as the page of PyTorch says."""

    def __init__(self, size: int = 60) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        step, first = (1, 0) if worker is None else (worker.num_workers, worker.id)
        return iter(range(first, self.size, step))


class UnevenBatches:
    """A batch sampler whose batches differ in size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        start, length = 0, 1
        while start < self.size:
            yield list(range(start, min(start + length, self.size)))
            start, length = start + length, length % 7 + 1

    def __len__(self) -> int:
        return sum(1 for _ in iter(self))


def add_one(batch: list[Any]) -> torch.Tensor:
    """A function that collates."""
    return torch.stack(batch) + 1


def wait_a_little(worker: int) -> None:
    """A `worker_init_fn`."""
    torch.rand(worker + 1)
