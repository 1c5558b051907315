"""200 steps of small transformers, of which each call is answered by another alternative."""

from __future__ import annotations

import pytest
from tuned_program import EachInTurnPolicy

import bestof
from bestof.bench.model.losses import Losses, Training, compare_losses
from bestof.bench.model.models import find_model
from bestof.torch.dispatch.overrides import operation_override
from bestof.torch.ops.attention.attention import Attention
from bestof.torch.ops.product.product import Product


@pytest.mark.long
@pytest.mark.parametrize("name", ["vit-b", "bert-base", "gpt2", "llama"])
def test_losses_stay_within_a_thousandth(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(Product, "least", 1)
    monkeypatch.setattr(Attention, "least", 1)
    bestof.use_policy(EachInTurnPolicy())
    losses = compare_losses(find_model(name), Training(2, 200, narrow=True))
    assert len(losses.pytorch) == 200
    assert losses.pytorch[-1] < losses.pytorch[0]
    assert losses.bestof != losses.pytorch  # other alternatives than PyTorch's own were at work
    assert losses.apart <= 1e-3
    for one in ("product", "attention", "attention_backward"):
        override = operation_override(one)
        assert override is not None
        assert override.selector.report().problems


def test_the_distance_of_losses_tells_of_nan() -> None:
    assert Losses((1.0, 2.0, 3.0), (1.0, 2.5, 3.25)).apart == 0.5
    assert Losses((1.0, 2.0), (float("nan"), 2.0)).apart == float("inf")
