"""The backend "bestof" of torch.compile: PyTorch's results and gradients, plans for inference,
choices in training."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from plan_models import build
from torch import nn
from torch.utils import _pytree as pytree

import bestof
from bestof.errors import BestofWarning
from bestof.torch.compile.backend import InferenceGraph, bestof_backend
from bestof.torch.dispatch.overrides import convolution_override
from bestof.torch.plan.steps.convolution_step import selector

MODELS = ("vgg", "resnet, basic", "mobilenet", "densenet", "unet", "transformer", "waves")
# Errors of some thirty float32 steps, against PyTorch's own; F(4) promises 5e-6 a step.
BOUND = 30 * 5e-6


@pytest.fixture(autouse=True)
def fresh(own_process: None) -> Iterator[None]:
    bestof.use_policy("rounds:rounds=1")
    selector.cache_clear()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    selector.cache_clear()


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[InferenceGraph]:
    """The graphs that were compiled for inference."""
    made: list[InferenceGraph] = []
    create = InferenceGraph.__init__

    def noted(self: InferenceGraph, *given: Any) -> None:
        made.append(self)
        create(self, *given)

    monkeypatch.setattr(InferenceGraph, "__init__", noted)
    return made


def assert_near(got: object, expected: object) -> None:
    for one, other in zip(pytree.tree_leaves(got), pytree.tree_leaves(expected), strict=True):
        assert one.shape == other.shape
        off, size = ((one - other).square().mean().sqrt(), other.square().mean().sqrt())
        assert off <= BOUND * size


def test_the_name_is_registered() -> None:
    named = {entry.name: entry.value for entry in entry_points(group="torch_dynamo_backends")}
    assert named["bestof"] == "bestof.torch.compile.backend:bestof_backend"
    assert torch._dynamo.lookup_backend("bestof") is bestof_backend


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", MODELS)
def test_inference_runs_as_a_plan(name: str, plans: list[InferenceGraph]) -> None:
    model, x = build(name)
    compiled = torch.compile(model, backend=bestof_backend)
    with torch.no_grad():
        for given in (
            x,
            torch.randn_like(x),
            torch.randn(3, *x.shape[1:]),
            torch.randn(5, *x.shape[1:]),
        ):
            assert_near(compiled(given), model(given))
    assert plans
    assert all(graph._plan is not None for graph in plans)


@pytest.mark.long(every=4)
@pytest.mark.parametrize("name", MODELS)
def test_training_chooses_and_has_the_same_gradients(
    name: str, plans: list[InferenceGraph]
) -> None:
    model, x = build(name)
    loss = lambda y: sum(leaf.square().mean() for leaf in pytree.tree_leaves(y))  # noqa: E731
    loss(model(x)).backward()
    expected = [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]
    model.zero_grad()
    compiled = torch.compile(model, backend=bestof_backend)
    loss(compiled(x)).backward()
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for got, right in zip(grads, expected, strict=True):
        assert_near(got, right)
    assert not plans
    if name not in ("waves", "mlp"):  # without a 2-D convolution there is nothing to choose
        override = convolution_override()
        assert override is not None
        assert override.layer.forward_calls.totals()
        assert override.layer.weight_gradient_calls.totals()


def test_parameters_that_change_between_calls(plans: list[InferenceGraph]) -> None:
    model, x = build("vgg")
    compiled = torch.compile(model, backend=bestof_backend)
    with torch.no_grad():
        for _ in range(6):  # first with a new plan each time, then without
            assert_near(compiled(x), model(x))
            for parameter in model.parameters():
                parameter.mul_(1.1)


def test_a_changed_input_stays_changed() -> None:
    class Clipping(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clamp_(0, 1) * 2

    compiled, x = torch.compile(Clipping(), backend=bestof_backend), torch.randn(3, 4)
    right = x.clamp(0, 1)
    with torch.no_grad(), pytest.warns(BestofWarning, match="changes its inputs"):
        got = compiled(x)
    assert torch.equal(x, right)
    assert torch.equal(got, 2 * right)


def test_training_mode_without_gradients_updates_statistics_once() -> None:
    norm, same = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    compiled, x = torch.compile(norm, backend=bestof_backend), torch.randn(2, 3, 5, 5)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", BestofWarning)
        assert_near(compiled(x), same(x))
        assert_near(compiled(x), same(x))
    assert torch.equal(norm.running_mean, same.running_mean)
    assert norm.num_batches_tracked == 2
