"""All attention is chosen for, so that the tests are quick."""

from __future__ import annotations

import pytest

from bestof.torch.attention import override as attention


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_LEAST", 1)
