"""What a plan notices of its model, keeps of its calls, and passes to its copies."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import TorchError
from bestof.torch.backends import shim
from bestof.torch.plan import optimized
from bestof.torch.plan.model_state import ModelState


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.absent = None
        self.register_module("none", None)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.first(x))


EXCHANGES: dict[str, Callable[[Nested], object]] = {
    "a layer": lambda one: setattr(one, "first", nn.Linear(4, 4)),
    "a layer without parameters": lambda one: one.body.__setitem__(1, nn.Tanh()),
    "a layer more": lambda one: one.body.append(nn.ReLU()),
    "a layer less": lambda one: one.body.__delitem__(1),
    "one for none": lambda one: setattr(one, "none", nn.ReLU()),
}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "by Python"])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_planned_shapes_notice_an_exchanged_module(
    exchange: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(shim, "handle_conversions", lambda: None)
    model, x = Nested().eval(), torch.randn(2, 4)
    state = ModelState(model)
    assert (state._watch is not None) == compiled
    assert state.is_unchanged()
    plan = bt.optimize(model, x)
    plan(x)
    EXCHANGES[exchange](model)
    assert not state.is_unchanged()
    with pytest.raises(TorchError, match=r"parameter, buffer or module .* was changed"):
        plan(x)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_module_with_parameters_is_planned_and_watched() -> None:
    model = nn.Sequential(nn.Linear(8, 8), torch.jit.script(nn.Linear(8, 8))).eval()
    x = torch.randn(2, 8)
    plan = bt.optimize(model, (x,))
    torch.testing.assert_close(plan(x), model(x), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        model[1].weight.mul_(2)
    with pytest.raises(TorchError, match="was changed after the plan was made"):
        plan(x)


def test_a_write_to_a_parameter_made_in_inference_mode_is_noticed() -> None:
    with torch.inference_mode():
        model = nn.Linear(4, 4).eval()
    x = torch.randn(2, 4)
    plan = bt.optimize(model, x)
    assert torch.allclose(plan(x), model(x), atol=1e-5)
    with torch.inference_mode():
        model.weight.add_(1)
    with pytest.raises(TorchError, match="was changed after the plan was made"):
        plan(x)


def test_a_write_in_inference_mode_to_another_parameter_is_noticed() -> None:
    model, x = nn.Linear(4, 4).eval(), torch.randn(2, 4)
    plan = bt.optimize(model, x)
    plan(x)
    with torch.inference_mode():
        model.weight.add_(1)
    with pytest.raises(TorchError, match="changed after the plan was made"):
        plan(x)


def test_a_copy_of_a_plan_joins_layers_as_its_original_does() -> None:
    plan = bt.optimize(nn.Linear(4, 4).eval(), torch.randn(2, 4))
    for joins in (False, True):
        plan.joins = joins
        assert copy.deepcopy(plan).joins is joins


def test_odd_strides_of_an_axis_of_extent_1_take_no_more_memory_for_each_call() -> None:
    plan = bt.optimize(nn.Linear(4, 4).eval(), torch.randn(1, 4))
    values = torch.randn(4)
    expected = plan(values[None])
    for stride in range(3 * optimized._CALLS):
        assert torch.equal(plan(values.as_strided((1, 4), (stride, 1))), expected)
        assert len(plan._simple) <= optimized._CALLS
    assert len(plan._programs) == 1


class Window(nn.Module):
    """Read memory of a layer's result by an offset from the beginning of its storage."""

    def __init__(self, skipped: int, offset: int | None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.skipped, self.offset = skipped, offset

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = self.first(x).relu()
        second = self.second(first)
        part = second[self.skipped :]
        return part.as_strided((2, 5), (5, 1), self.offset) + 1, first + second


@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("offset", [None, 0, 7, 20])
def test_as_strided_counts_its_offset_from_the_value(skipped: int, offset: int | None) -> None:
    torch.manual_seed(0)
    model = Window(skipped, offset).eval()
    plan = bt.optimize(model, torch.randn(8, 16))
    for rows in (8, 8, 6):
        x = torch.randn(rows, 16)
        for one, expected in zip(plan(x), model(x), strict=True):
            torch.testing.assert_close(one, expected, atol=1e-5, rtol=1e-5)


class Selected(nn.Module):
    def __init__(self, select: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.select = select

    def forward(self, x: Tensor) -> Tensor:
        return self.select(x)


@pytest.mark.parametrize(
    "select",
    [
        lambda x: x.nonzero().sum(),
        lambda x: x[x > 0].relu(),
        lambda x: torch.argwhere(x).sum(1),
        lambda x: x * x.sum().item(),
    ],
    ids=["nonzero", "masked", "argwhere", "item"],
)
def test_shapes_that_depend_on_values_are_refused_in_clear_words(
    select: Callable[[Tensor], Tensor],
) -> None:
    with pytest.raises(TorchError, match=r"depends on the values of tensors|cannot be traced"):
        bt.optimize(Selected(select).eval(), torch.randn(4))
