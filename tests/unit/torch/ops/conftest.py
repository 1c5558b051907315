"""Small problems are chosen for, too."""

from __future__ import annotations

import pytest

from bestof.torch.ops import table
from bestof.torch.ops.activation import activation
from bestof.torch.ops.norm import group_norm_backward, layer_norm_problem
from bestof.torch.ops.softmax import softmax


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in activation, group_norm_backward, layer_norm_problem, softmax:
        monkeypatch.setattr(module, "LEAST", 1)
    monkeypatch.setattr(activation, "LEAST_TANH", 1)
    for kind in {type(one) for one in table.OPERATIONS if one.rule == "elements"}:
        monkeypatch.setattr(kind, "least", 1)
