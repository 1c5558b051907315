"""Layers of a relaxed plan on bfloat16 products: against float64, each element within what the
roundings allow; and what a plan is not allowed to hide behind them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import BestofWarning
from bestof.torch.plan.optimized import OptimizedModel
from bestof.torch.plan.run.program import Program
from bestof.torch.plan.steps import layer_reference
from bestof.torch.plan.steps.convolution_step import ConvolutionStep
from bestof.torch.plan.verify.injected_errors import magnification, promised_errors
from bestof.torch.plan.verify.verification import verify

UNIT = 2.0**-8  # the largest relative error of rounding to 8 bits
EPSILON = float(torch.finfo(torch.float32).eps) / 2

CONVOLUTION = nn.Conv2d(40, 24, 1, stride=2)
STEM = nn.Conv2d(3, 16, 7, stride=2, padding=3)
LINEAR = nn.Linear(300, 70)
CASES: list[tuple[nn.Module, tuple[int, ...], str]] = [
    (CONVOLUTION, (2, 40, 9, 11), "convgemm_bf16"),
    (STEM, (1, 3, 20, 17), "convgemm_bf16"),
    (LINEAR, (3, 300), "convgemm_bf16"),
    (LINEAR, (1, 300), "matvec_bf16"),
    (LINEAR, (7, 300), "matvec_bf16"),
]


def _program(plan: OptimizedModel) -> Program:
    return next(reversed(plan._programs.values()))[2]


def _settled(
    layer: nn.Module, x: Tensor, algorithm: str, accuracy: Any = "relaxed"
) -> OptimizedModel:
    plan = bt.optimize(nn.Sequential(layer, nn.ReLU()).eval(), x, accuracy=accuracy, tune=False)
    program = _program(plan)
    (name,) = [node.meta["name"] for node in program.choices]
    program.settle({name: algorithm})
    program.bind_anew()
    return plan


def _drawn(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
@pytest.mark.parametrize(("layer", "shape", "algorithm"), CASES)
def test_every_element_is_within_its_roundings(
    layer: Any, shape: tuple[int, ...], algorithm: str
) -> None:
    x = _drawn(shape)
    got = _settled(layer, x, algorithm)(x)
    both = (
        2 * UNIT + UNIT**2 if algorithm == "convgemm_bf16" else UNIT
    )  # x and the weights, or those alone
    magnitudes = _apply(
        layer, x.double().abs(), layer.weight.double().abs(), layer.bias.double().abs()
    )
    wanted = _apply(layer, x.double(), layer.weight.double(), layer.bias.double()).relu()
    terms = layer.weight[0].numel() + 2
    error = (got - wanted).abs()
    assert (error <= (both + EPSILON * terms) * magnitudes).all()
    assert (
        error.max() > 2 * EPSILON * terms * magnitudes.max()
    )  # float32 would not have erred so much


def _apply(layer: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if isinstance(layer, nn.Linear):
        return nn.functional.linear(x, weight, bias)
    return nn.functional.conv2d(x, weight, bias, layer.stride, layer.padding)


@torch.no_grad()
@pytest.mark.parametrize("floats", [2**22, 1000])  # weights whole, and some filters at a time
@pytest.mark.parametrize(("layer", "shape", "algorithm"), CASES)
def test_a_plan_that_keeps_its_promise_is_verified(
    layer: Any, shape: tuple[int, ...], algorithm: str, floats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_reference, "_SQUARED_FLOATS", floats)
    x = _drawn(shape)
    _expect_verified(_settled(layer, x, algorithm), layer, x, algorithm)


@torch.no_grad()
@pytest.mark.parametrize("algorithm", ["matvec_bf16", "convgemm_bf16"])
def test_roundings_that_are_alike_break_no_promise(algorithm: str) -> None:
    """All just below the middle of two numbers of bfloat16: rounding errs twice as much as at
    random, and one way."""
    layer = nn.Linear(512, 1000)
    nn.init.constant_(layer.weight, 1 + UNIT - 2.0**-20)
    nn.init.zeros_(layer.bias)
    x = torch.full((2, 512), 1 + UNIT - 2.0**-20)
    plan = _settled(layer, x, algorithm)
    right = layer(x)
    error = (plan(x) - right).square().mean().sqrt() / right.square().mean().sqrt()
    assert error > (
        7.7e-3 if algorithm == "convgemm_bf16" else 3.8e-3
    )  # 3e-3 and 2e-3 are for operands at random
    _expect_verified(plan, layer, x, algorithm)


@torch.no_grad()
@pytest.mark.parametrize("seed", [19, 38])
@pytest.mark.parametrize("algorithm", ["matvec_bf16", "convgemm_bf16"])
def test_a_single_output_breaks_no_promise(algorithm: str, seed: int) -> None:
    """No mean over results tames the errors: 1.4 to 3.3 times what rounding costs at random."""
    torch.manual_seed(seed)
    layer, x = nn.Linear(512, 1), torch.randn(1, 512)
    layer.bias.fill_(4)  # the sum alone might cancel, and the model's output with it
    _expect_verified(_settled(layer, x, algorithm, "float32"), layer, x, algorithm)


def _expect_verified(plan: OptimizedModel, layer: Any, x: Tensor, algorithm: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", BestofWarning)
        verify(_program(plan), [x], [layer(x).relu()], [x])
    assert set(_program(plan).decisions().values()) == {algorithm}


@torch.no_grad()
def test_injected_errors_stay_small() -> None:
    """How a network answers to errors of this size is measured; to 64 times as much it may answer
    out of proportion."""
    x = _drawn((2, 300))
    for algorithm, magnified in (("convgemm", 64.0), ("matvec_bf16", 1.5), ("convgemm_bf16", 1.0)):
        found = magnification(promised_errors(_program(_settled(LINEAR, x, algorithm))).values())
        assert found == pytest.approx(magnified, abs=0.1)


@torch.no_grad()
@pytest.mark.parametrize("times", [4, 0.1])
@pytest.mark.parametrize(("layer", "shape", "algorithm"), CASES)
def test_an_error_beside_the_roundings_is_found(
    layer: Any,
    shape: tuple[int, ...],
    algorithm: str,
    times: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four times the promise, and a tenth of it, which the roundings themselves would hide."""
    x = _drawn(shape)
    right = ConvolutionStep.runner

    def wrong(step: ConvolutionStep, name: str) -> Any:
        run = right(step, name)
        if name != algorithm:
            return run

        def off() -> None:
            run()
            noise = torch.randn(step.placed.out.shape, generator=torch.Generator().manual_seed(4))
            plain = _apply(layer, x, layer.weight, layer.bias)
            step.placed.out.add_(noise * (times * 3e-3 * plain.square().mean().sqrt()))

        return off

    plan = _settled(layer, x, algorithm)  # before the fault: an open choice may try any algorithm
    monkeypatch.setattr(ConvolutionStep, "runner", wrong)
    _program(plan).bind_anew()
    with pytest.warns(BestofWarning, match=f"{algorithm} is off by"):
        verify(_program(plan), [x], [layer(x).relu()], [x])
    assert set(_program(plan).decisions().values()) == {"pytorch"}


@torch.no_grad()
def test_a_layer_that_settles_meanwhile_is_judged_by_the_algorithm_that_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The outputs come from bfloat16, and the choice is float32 before they are compared."""
    x = _drawn((6, 300))  # rows of no other test: the selector has not decided
    plan = _settled(LINEAR, x, "matvec_bf16")
    program = _program(plan)
    (choice,) = program.choices.values()
    choice._algorithm = None
    program.bind_anew()
    monkeypatch.setattr(ConvolutionStep, "select", lambda self: self.runner("matvec_bf16")())
    run = Program.run

    def settling(self: Program, *given: Any, **named: Any) -> list[Any]:
        outputs = run(self, *given, **named)
        choice.settle("convgemm")
        self.bind_anew()
        return outputs

    monkeypatch.setattr(Program, "run", settling)
    verify(program, [x], [LINEAR(x).relu()], [x])
    assert choice.algorithm == "convgemm"
