"""Invented engines, and models for them, which the processes of engines import."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bestof.torch.engines.build import Call
from bestof.torch.engines.engine import Engine
from bestof.torch.engines.flat import FlatModel

SLOW = 0.03  # seconds; hundreds of times what the models take


def fake(does: str, **options: Any) -> Engine:
    return Engine(does, __name__, options={"does": does, **options})


def build(
    flat: FlatModel,
    _tensors: Sequence[Tensor],
    _threads: int,
    _accuracy: str,
    *,
    does: str,
    slow_batch: int = 0,
) -> Call:
    if does == "hangs":
        time.sleep(1000)
    if does == "needs a file":
        open("/nowhere/model.bin")  # noqa: SIM115

    def call(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if does == "crashes":
            os.abort()
        if does == "slow" or (slow_batch and len(tensors[0]) == slow_batch):
            time.sleep(SLOW)
        with torch.no_grad():
            outputs: tuple[Tensor, ...] = flat(*tensors)
        if does == "wrong":
            return [one * 1.01 for one in outputs]
        return outputs

    return call


class Net(nn.Module):
    """Takes one tensor by name, and nests its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 4)

    def forward(self, rows: Tensor, *, scale: Tensor | None = None) -> dict[str, Any]:
        result = self.dense(rows)
        return {"result": result if scale is None else result * scale, "label": "net"}


class Changing(nn.Module):
    """Changes its input."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows.add_(1.0).relu()


class Pooling(nn.Module):
    """Sums rows of any length."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows.sum(1)
