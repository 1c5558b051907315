"""Which images of a plan the native kernel copies into channels last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bestof.torch.plan.operations import channels


def copied(monkeypatch: pytest.MonkeyPatch, x: Tensor) -> tuple[Tensor, list[Any]]:
    """Return the copy of an image, and the operands of the native kernel."""
    taken: list[Any] = []
    transpose = channels.transpose

    def counted(x: Any, axes: tuple[int, ...], *, out: Any) -> Any:
        taken.extend((x, out))
        return transpose(x, axes, out=out)

    monkeypatch.setattr(channels, "transpose", counted)
    into = torch.full_like(x, torch.nan, memory_format=torch.channels_last)
    channels.filler(lambda: x, into)()
    return into, taken


def test_pytorch_copies_small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 4, 8, 8)
    into, taken = copied(monkeypatch, x)
    assert torch.equal(into, x)
    assert not taken


def test_the_kernel_takes_large_images_without_dlpack(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 4, 64, 64)
    into, taken = copied(monkeypatch, x)
    assert torch.equal(into, x)
    assert [type(one) for one in taken] == [np.ndarray, np.ndarray]


def test_pytorch_copies_large_images_with_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 4, 64, 128)[..., ::2]
    into, taken = copied(monkeypatch, x)
    assert torch.equal(into, x)
    assert not taken
