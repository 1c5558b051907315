"""Products of a hundred rows are chosen for, so that the tests are quick."""

from __future__ import annotations

import pytest

from bestof.torch.product import override


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(override, "LEAST", 2**19)
