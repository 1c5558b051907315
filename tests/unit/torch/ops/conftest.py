"""Small problems are chosen for, too."""

from __future__ import annotations

import pytest

from bestof.torch.ops import table
from bestof.torch.ops.activation import curve
from bestof.torch.ops.norm import group_norm_backward, rows
from bestof.torch.ops.softmax import softmax


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in curve, group_norm_backward, rows, softmax:
        monkeypatch.setattr(module, "LEAST", 1)
    monkeypatch.setattr(curve, "LEAST_TANH", 1)
    for kind in {type(one) for one in table.OPERATIONS if one.rule == "elements"}:
        monkeypatch.setattr(kind, "least", 1)
