"""All attention is chosen for, so that the tests are quick."""

from __future__ import annotations

import pytest

from bestof.torch.ops.attention.attention import Attention


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attention, "least", 1)
