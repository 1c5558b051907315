"""A part of an epoch with one setting.

It is a DataLoader like the user's, with another setting, that draws from the order of the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from bestof.torch.process.data_loading.sample_order import Gate, SampleOrder
from bestof.torch.process.data_loading.setting import Setting


class SegmentLoader(DataLoader[Any]):
    """A loader of one segment. Its class distinguishes it from loaders of the user."""


def segment(
    loader: DataLoader[Any],
    setting: Setting,
    gate: Gate,
    generator: torch.Generator,
    timeout: float,
) -> Iterator[Any]:
    """Start a segment of `loader`.

    Workers draw their seeds from `generator`. timeout: seconds, or 0 for none.
    """
    batched = loader.batch_sampler is not None
    workers = setting.workers > 0
    part = SegmentLoader(
        loader.dataset,
        batch_size=1 if batched else None,
        sampler=None if batched else gate,
        batch_sampler=gate if batched else None,
        num_workers=setting.workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=timeout if workers else 0,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context if workers else None,
        generator=generator,
        prefetch_factor=setting.prefetch if workers else None,
        pin_memory_device=loader.pin_memory_device,
    )
    batches: Iterator[Any] = iter(part)
    return batches


class OwnSampler:
    """Replaces the sampler of the user's loader while the loader makes its own iterator.

    It draws through a gate, so that the segment can be ended.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.armed = False
        self.order: SampleOrder | None = None
        self.gate: Gate | None = None

    def __iter__(self) -> Iterator[Any]:
        indices: Iterator[Any] = iter(self.sampler)
        if not self.armed:
            return indices
        self.order = SampleOrder(indices)
        self.gate = Gate(self.order)
        return self.gate

    def __len__(self) -> int:
        return len(self.sampler)


def sampler_name(loader: DataLoader[Any]) -> str:
    """Return the name of the attribute that yields the indices of batches.

    Without batching, it yields the indices of samples.
    """
    return "sampler" if loader.batch_sampler is None else "batch_sampler"
