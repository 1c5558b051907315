"""Fixtures of these tests: a process that has just begun, and two ways to search."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tuned_program import EachInTurnPolicy

import bestof
import bestof.torch as integration
from bestof.torch.enable import _State


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a process that has just begun, without a store, on one thread; PyTorch's own kernels
    afterwards."""
    monkeypatch.setattr(_State, "override", None)
    monkeypatch.setattr(_State, "pooling", None)
    monkeypatch.setattr(_State, "product", None)
    monkeypatch.setattr(_State, "attention", None)
    bestof.use_store(None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    yield
    torch.set_num_threads(threads)
    integration.disable()
    bestof.use_policy(None)


@pytest.fixture(params=["race", "each in turn"])
def policy(request: pytest.FixtureRequest, own_process: None) -> None:
    if request.param != "race":
        bestof.use_policy(EachInTurnPolicy())
