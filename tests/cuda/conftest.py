"""Tests that need a real CUDA device; a machine without one skips them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import bestof.torch as bt


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "tests/cuda/" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    """Each test begins and ends with PyTorch's own kernels and in full float32."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    bt.disable()
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = False
