"""Fixtures of the integration: no store, one thread, and PyTorch's own kernels afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import bestof
import bestof.torch
from bestof.torch.enable import _State


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has just begun."""
    monkeypatch.setattr(_State, "override", None)
    monkeypatch.setattr(_State, "pooling", None)
    monkeypatch.setattr(_State, "product", None)
    monkeypatch.setattr(_State, "attention", None)
    bestof.use_store(None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    bestof.torch.disable()
    bestof.use_policy(None)
