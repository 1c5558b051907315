"""Plans of models of bfloat16: each layer against float64, within the roundings of its result."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import BestofWarning
from bestof.torch.ops.distance import Size
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps.convolution_step import ConvolutionStep
from bestof.torch.plan.verify import bounds
from bestof.torch.plan.verify.injected_errors import Moved
from bestof.torch.plan.verify.verification import verify

UNIT = 2.0**-8  # the largest relative error of rounding to 8 bits
EPSILON = float(torch.finfo(torch.float32).eps) / 2
NATIVE = "blocked_bf16"
ROWS = (1, 2, 3, 7, 16, 17, 40)
INNER, OUTER = 300, 70


class Layer(nn.Module):
    """A linear layer, by a weight as it is or turned, and what follows it."""

    def __init__(self, bias: bool, turned: bool, then: Callable[[Any, Tensor, Tensor], Tensor]):
        super().__init__()
        torch.manual_seed(0)
        weight = torch.randn(OUTER, INNER) / math.sqrt(INNER)
        self.weight = nn.Parameter(weight.t().contiguous() if turned else weight)
        self.bias = nn.Parameter(torch.randn(OUTER)) if bias else None
        self.other = nn.Parameter(torch.randn(OUTER, INNER) / math.sqrt(INNER))
        self.turned, self.then = turned, then

    def forward(self, x: Tensor) -> Tensor:
        if self.turned and self.bias is not None:  # as GPT-2 does
            return self.then(self, x, torch.addmm(self.bias, x, self.weight))
        return self.then(self, x, F.linear(x, self.weight, self.bias))


def plain(_layer: Any, _x: Tensor, y: Tensor) -> Tensor:
    return y


def with_gelu(_layer: Any, _x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(y)


def with_silu(_layer: Any, _x: Tensor, y: Tensor) -> Tensor:
    return F.silu(y)


def with_residual(layer: Any, x: Tensor, y: Tensor) -> Tensor:
    """Another layer is the residual."""
    return F.linear(x, layer.other) + y


CASES = [
    (bias, turned, then)
    for bias, turned in ((False, False), (True, False), (True, True))
    for then in (plain, with_gelu, with_silu, with_residual)
]


def program_of(plan: OptimizedModel) -> Program:
    return next(reversed(plan._programs.values()))[2]


def settled(layer: nn.Module, x: Tensor) -> OptimizedModel:
    """Return a plan whose layers all run by the native product."""
    plan = bt.optimize(layer, x, tune=False)
    program = program_of(plan)
    program.settle({str(node.meta["name"]): NATIVE for node in program.choices})
    program.bind_anew()
    return plan


@pytest.mark.long(every=3)
@torch.no_grad()
@pytest.mark.parametrize(("bias", "turned", "then"), CASES)
def test_each_result_is_rounded_as_often_as_a_layer_ends(
    bias: bool, turned: bool, then: Callable[[Any, Tensor, Tensor], Tensor]
) -> None:
    layer = Layer(bias, turned, then).eval().bfloat16()
    exact = copy.deepcopy(layer).double()
    for rows in ROWS:
        x = torch.randn(rows, INNER, generator=torch.Generator().manual_seed(rows)).bfloat16()
        plan = settled(layer, x)
        assert NATIVE in {step.algorithm for step in plan.explain().steps}
        wanted, magnitude = exact(x.double()), x.double().abs() @ exact.other.double().abs().t()
        weight = exact.weight.abs() if turned else exact.weight.abs().t()
        magnitude += x.double().abs() @ weight
        magnitude += 0 if layer.bias is None else exact.bias.abs()
        rounded = UNIT * wanted.abs() * (1 + UNIT)
        if then is with_residual:  # the residual is a rounded result itself
            rounded += UNIT * F.linear(x.double(), exact.other).abs() * (1 + UNIT)
        error = (plan(x).double() - wanted).abs()
        bound = rounded + 1.2 * 1.01 * EPSILON * (2 * INNER + 16) * magnitude  # slopes up to 1.2
        assert (error <= bound).all()


@torch.no_grad()
def test_a_file_keeps_the_product(tmp_path: Any) -> None:
    layer = Layer(True, True, with_residual).eval().bfloat16()
    x = torch.randn(3, INNER).bfloat16()
    plan = settled(layer, x)
    file = io.BytesIO()
    plan.save(file)
    file.seek(0)
    loaded = bt.load(file)
    assert torch.equal(loaded(x), plan(x))
    assert set(program_of(loaded).decisions().values()) == {NATIVE}
    plan.save(tmp_path / "plan")
    assert torch.equal(bt.load(tmp_path / "plan")(x), plan(x))


@torch.no_grad()
def test_a_released_plan_keeps_only_the_packed_weight() -> None:
    layer = nn.Linear(INNER, OUTER).eval().bfloat16()
    x = torch.randn(2, INNER).bfloat16()
    right = layer(x).clone()
    plan = settled(layer, x)
    plan(x)
    plan.release()
    torch.testing.assert_close(plan(x), right, rtol=2 * UNIT, atol=1e-3)


@torch.no_grad()
def test_a_wrong_product_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(INNER, OUTER).eval().bfloat16()
    x = torch.randn(5, INNER).bfloat16()
    right = ConvolutionStep.runner

    def wrong(step: ConvolutionStep, name: str) -> Any:
        run = right(step, name)

        def off() -> None:
            run()
            step.placed.out[3] += 0.1  # one row of five

        return off if name == NATIVE else run

    plan = settled(layer, x)  # before the fault: an open choice may try any algorithm
    monkeypatch.setattr(ConvolutionStep, "runner", wrong)
    program_of(plan).bind_anew()
    with pytest.warns(BestofWarning, match=f"{NATIVE} is off by"):
        verify(program_of(plan), [x], [layer(x)], [x])
    assert set(program_of(plan).decisions().values()) == {"pytorch"}


@torch.no_grad()
def test_a_model_of_two_types() -> None:
    """Layers of bfloat16 among others of float32, as mixed models have them."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(64, 96), nn.Linear(96, 33).bfloat16()

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.last(F.relu(self.first(x)).bfloat16()).float() * 2
            return found

    model, x = Mixed().eval(), torch.randn(4, 64)
    plan = bt.optimize(model, x)
    last = copy.deepcopy(model.last).float()
    wanted = last(F.relu(model.first(x))) * 2  # rounds nothing
    assert (plan(x) - wanted).norm() <= 3 * UNIT * wanted.norm()
    problems = [step.problem for step in plan.explain().steps if "linear" in step.problem]
    assert ["bfloat16" in one for one in problems] == [False, True]


def test_a_whole_number_may_differ_only_if_injected_errors_change_it() -> None:
    right = torch.tensor([3, 8])
    same, other = (Moved(one, Size()) for one in (True, False))
    assert bounds.exact_difference(right, iter([same, other])) is None
    wrong = bounds.exact_difference(right, iter([same, same]))
    assert wrong is not None
    assert "differs from the model's" in wrong
