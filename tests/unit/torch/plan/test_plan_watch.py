"""The check in C++ that a model is unchanged."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.torch.backends import shim
from bestof.torch.plan.model_state import ModelState


def model() -> nn.Sequential:
    own_forward = nn.ReLU()
    own_forward.forward = torch.relu  # type: ignore[assignment]
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 1, bias=False),
        nn.Sequential(),
        own_forward,
    ).eval()


def _weight(one: nn.Sequential) -> nn.Parameter:
    return one[0].weight  # type: ignore[return-value]


def _in_place(one: nn.Sequential) -> None:
    with torch.no_grad():
        _weight(one).add_(1)


def _other_data(one: nn.Sequential) -> None:
    _weight(one).data = torch.ones(4, 3, 3, 3)


def _swapped(one: nn.Sequential) -> None:
    torch.utils.swap_tensors(_weight(one), nn.Parameter(torch.ones(4, 3, 3, 3)))


class Negated(nn.BatchNorm2d):
    """Another class with the same parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -super().forward(x)


def _other_class(one: nn.Sequential) -> None:
    one[1].__class__ = Negated  # type: ignore[assignment]


CHANGES: list[Callable[[nn.Sequential], object]] = [
    _in_place,
    _other_data,
    _swapped,
    lambda one: setattr(one[0], "weight", nn.Parameter(_weight(one).detach())),
    lambda one: setattr(one[0], "bias", None),
    lambda one: delattr(one[0], "weight"),
    lambda one: one[1].running_mean.zero_(),  # type: ignore[operator, union-attr]
    lambda one: setattr(one[2], "bias", nn.Parameter(torch.ones(4))),  # it had none
    lambda one: one[3].append(nn.ReLU()),  # type: ignore[operator]  # it was empty
    lambda one: one[0].add_module("more", nn.ReLU()),
    lambda one: setattr(one[0], "forward", torch.relu),
    lambda one: setattr(one[4], "forward", torch.tanh),
    lambda one: delattr(one[4], "forward"),
    _other_class,
]


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "by Python"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(
    change: Callable[[nn.Sequential], object], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(shim, "handle_conversions", lambda: None)
    one = model()
    state = ModelState(one)
    assert (state._watch is not None) == compiled
    assert state.is_unchanged()
    change(one)
    assert not state.is_unchanged()


def test_python_is_not_asked_where_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    one = model()
    state = ModelState(one)
    one.share_memory()
    assert state._watch is not None
    assert not state._watch.is_unchanged()
    assert state.is_unchanged()  # and met anew
    monkeypatch.setattr(state, "_versions", None)
    assert state.is_unchanged()


def test_a_module_may_gain_and_lose_other_attributes() -> None:
    one = model()
    state = ModelState(one)
    assert state._watch is not None
    for change in (lambda: setattr(one[0], "note", 1), lambda: delattr(one[0], "note")):
        change()
        assert not state._watch.is_unchanged()
        assert state.is_unchanged()  # Python looks closer, once
        assert state._watch.is_unchanged()


@pytest.mark.parametrize("change", [_other_class, lambda one: one[3].append(nn.ReLU())])
def test_a_plan_of_other_modules_is_refused(change: Callable[[nn.Sequential], object]) -> None:
    one, x = model(), torch.randn(1, 3, 5, 5)
    plan = bt.optimize(one, x, tune=False)
    plan(x)
    change(one)
    with pytest.raises(TorchError, match="was changed after the plan was made"):
        plan(x)


def test_parameters_may_be_swapped_while_a_plan_lives() -> None:
    one, x = model(), torch.randn(1, 3, 5, 5)
    plan = bt.optimize(one, x, tune=False)
    _swapped(one)
    with pytest.raises(TorchError, match="was changed after the plan was made"):
        plan(x)


@pytest.mark.parametrize("owner", ["0.weight", "1.running_mean"])
def test_a_plan_that_a_tensor_of_its_model_keeps_is_collected(owner: str) -> None:
    one, x = model(), torch.randn(1, 3, 5, 5)
    plan = bt.optimize(one, x, tune=False)
    plan(x)
    tensor = dict(one.named_parameters()) | dict(one.named_buffers())
    tensor[owner].plan = plan  # type: ignore[attr-defined]
    left = weakref.ref(plan), weakref.ref(tensor[owner])
    del one, plan, tensor
    gc.collect()
    assert [ref() for ref in left] == [None, None]
