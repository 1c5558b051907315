"""An order for a pass holds in layers that would race their passes against others as a whole."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bestof
import bestof.torch as bt
from bestof.selection.state.registry import selectors
from bestof.selection.store.memory import MemoryStore
from bestof.torch.dispatch.convolution import layer

PASSES = ("forward", "input gradient", "weight gradient")


def layer_trials() -> int:
    return sum(one.trials for one in selectors() if one.name == "convolution layer")


def train(monkeypatch: pytest.MonkeyPatch, size: int = 32) -> dict[str, set[str | None]]:
    """Return what was chosen for each pass of a layer whose ways are worth a race."""
    monkeypatch.setattr(layer, "computes_jointly", lambda _: True)
    monkeypatch.setattr(layer, "shares_im2row", lambda _: True)
    bt.enable({"kernel": {"budget": None}})
    convolution, x = nn.Conv2d(16, 16, 3), torch.randn(2, 16, size, size, requires_grad=True)
    for _ in range(12):
        convolution(x).sum().backward()
    passes = bt.summary().passes
    return {name: {one.chosen for one in passes if one.name == name} for name in PASSES}


def test_a_fixed_row_computes_all_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    bestof.use_policy("fixed:im2row")
    before = layer_trials()
    assert train(monkeypatch) == {name: {"im2row"} for name in PASSES}
    assert layer_trials() == before


def test_an_order_for_one_pass_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BESTOF_FORCE", "convolution forward=im2row")
    before = layer_trials()
    assert train(monkeypatch)["forward"] == {"im2row"}
    assert layer_trials() == before


GRADIENT = "i16x26x26,k16x3x3,b2,s1,p0,d1,g1 gradient=other threads={}"


@pytest.mark.parametrize(
    ("name", "problem", "size"),
    [("forward", None, 24), ("weight gradient", None, 25), ("input gradient", GRADIENT, 26)],
)
def test_a_pin_for_one_pass_holds(
    name: str, problem: str | None, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    text = None if problem is None else problem.format(torch.get_num_threads())
    store.pin(f"convolution {name}", "im2row", text)
    bestof.use_store(store)
    before = layer_trials()
    try:
        assert train(monkeypatch, size)[name] == {"im2row"}
    finally:
        bestof.use_store(None)
    assert layer_trials() == before


def test_without_an_order_the_ways_race(monkeypatch: pytest.MonkeyPatch) -> None:
    before = layer_trials()
    train(monkeypatch)
    assert layer_trials() > before
