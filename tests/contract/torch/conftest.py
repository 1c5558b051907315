"""Fixtures of these tests: a process that has just begun, and two ways to search."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tuned_program import EachInTurnPolicy

import bestof
from bestof.torch.ops.convolution import recognition
from fresh_process import fresh_process


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.manual_seed(7)
    monkeypatch.setattr(recognition, "LEAST_PRODUCTS", 1)  # so that small convolutions are chosen
    yield from fresh_process(monkeypatch)


@pytest.fixture(params=["race", "each in turn"])
def policy(request: pytest.FixtureRequest, own_process: None) -> None:
    if request.param != "race":
        bestof.use_policy(EachInTurnPolicy())
