"""Fixtures of the integration: no store, one thread, and PyTorch's own kernels afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bestof.torch.ops import onednn
from fresh_process import fresh_process


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from fresh_process(monkeypatch)


@pytest.fixture
def known_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell that PyTorch contains a oneDNN whose faults are known, whatever its release contains."""
    monkeypatch.setattr(onednn, "version", lambda: onednn.KNOWN[-1])
