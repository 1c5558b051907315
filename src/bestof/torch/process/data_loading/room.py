"""Checks that the workers and batches of a setting fit into memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from bestof.processors import available_memory
from bestof.torch.process.data_loading.setting import Setting

SHARED = Path("/dev/shm")

SHARED_PART = 0.5
"""The part of the free shared memory that batches in flight may take. Without shared memory, a
worker is killed by SIGBUS."""

MEMORY_PART = 0.25
"""The part of the available memory that batches in flight and workers may take."""


def batch_bytes(batch: Any, depth: int = 4) -> int:
    """Return the bytes of the tensors and arrays in a batch."""
    if isinstance(batch, torch.Tensor):
        return batch.numel() * batch.element_size()
    if isinstance(batch, numpy.ndarray):
        return int(batch.nbytes)
    if depth == 0 or isinstance(batch, (str, bytes)):
        return 0
    if isinstance(batch, Mapping):
        return sum(batch_bytes(part, depth - 1) for part in batch.values())
    if isinstance(batch, Sequence):
        return sum(batch_bytes(part, depth - 1) for part in batch)
    if is_dataclass(batch):
        return sum(batch_bytes(getattr(batch, one.name), depth - 1) for one in fields(batch))
    return 0


def free_shared_memory() -> int | None:
    """Return the free bytes of /dev/shm, through which workers pass batches. None without it."""
    try:
        state = os.statvfs(SHARED)
    except OSError:
        return None
    return state.f_bavail * state.f_frsize


def private_bytes(pids: Sequence[int]) -> int:
    """Return the mean memory that each of these processes shares with no other one.

    Return 0 if the system does not tell.
    """
    found = []
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        except OSError:
            continue
        lines = [line.split() for line in text.splitlines() if line.startswith("Private_")]
        found.append(sum(int(words[1]) for words in lines) * 1024)
    return sum(found) // len(found) if found else 0


def objection(setting: Setting, one_batch: int, one_worker: int) -> str | None:
    """Return why the setting does not fit into memory, or None if it does.

    one_batch: bytes of a batch. one_worker: private bytes of a worker, or 0 if unknown.
    """
    if setting.workers == 0:
        return None
    # The prefetched batches, and one batch per worker that is being made.
    under_way = setting.workers * ((setting.prefetch or 0) + 1) * one_batch
    shared = free_shared_memory()
    if shared is not None and under_way > SHARED_PART * shared:
        return (
            f"too little shared memory: {_mib(under_way)} MiB of batches in flight, "
            f"{_mib(shared)} MiB free in {SHARED}"
        )
    memory = available_memory()
    needed = under_way + setting.workers * one_worker
    if memory is not None and needed > MEMORY_PART * memory:
        return f"too little memory: {_mib(needed)} MiB needed, {_mib(memory)} MiB available"
    return None


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f}"
