"""Products of a hundred rows are chosen for, so that the tests are quick."""

from __future__ import annotations

import pytest

from bestof.torch.ops.product.product import Product


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Product, "least", 2**19)
