"""The budget holds for PyTorch's operations as `enable` leaves them, without ranks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bestof.torch as bt
from bestof.selection.state.budget import Budget
from bestof.selection.state.registry import Defaults, ranks_agree

now = 0.0


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Budget:
    """Return the account of the process, which is used up."""
    monkeypatch.delenv("BESTOF_BUDGET")
    monkeypatch.setattr(Defaults, "budget", Budget(lambda: now))
    Defaults.budget.book(1e9)
    return Defaults.budget


def test_trials_wait_while_the_budget_is_used_up(account: Budget) -> None:
    bt.enable()
    assert not ranks_agree()
    x = torch.randn(512, 2048)
    convolution, image = nn.Conv2d(16, 16, 3), torch.randn(2, 16, 64, 64)
    for _ in range(20):
        F.silu(x)
        convolution(image).sum().backward()
    summary = bt.summary()
    assert len(summary.passes) >= 3
    assert summary.trials <= len(summary.passes) + 1  # the first of each problem, and of the layer
    assert account.waited > 0


def test_without_a_bound_they_do_not(account: Budget) -> None:
    bt.enable({"kernel": {"budget": None}})
    x = torch.randn(512, 2048)
    for _ in range(20):
        F.silu(x)
    assert bt.summary().trials > 2
    assert account.waited == 0


def test_a_window_has_none(account: Budget) -> None:
    bt.enable({"kernel": {"tuning_range": [0, 10]}})
    x = torch.randn(512, 2048)
    for _ in range(20):
        F.silu(x)
    assert bt.summary().trials > 2
    assert account.waited == 0
