"""Models of other packages give the same results while convolutions are chosen.

They are made from configurations, with random weights, in narrow forms. Nothing is downloaded.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from promised_noise import Run, assert_as_promised
from torch import Tensor, nn
from torch.nn import functional
from tuned_program import EachInTurnPolicy, calls_seen

import bestof
import bestof.torch as integration
from bestof.bench.model.models import MODELS, Model
from bestof.bench.model.step import training_step

STEPS = 3
CALLS = 8


@pytest.fixture(params=MODELS, ids=lambda row: row.name)
def row(request: pytest.FixtureRequest) -> Model:
    return request.param


@pytest.fixture(autouse=True)
def every_alternative(own_process: None) -> None:
    """Every call is a trial of another alternative."""
    bestof.use_policy(EachInTurnPolicy())


def inputs(row: Model, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return four images of a data type, or texts."""
    found = row.inputs(4, narrow=True)
    return found.to(dtype) if found.is_floating_point() else found


def least_calls(row: Model, calls: int) -> int:
    """Return how many choices there are: narrow language models have products too small for any."""
    return 0 if row.text else calls


def train(row: Model, labels: Tensor) -> Run:
    """Logits and gradients with frozen norms, which do not amplify errors as those of a small batch
    do; the same of the first training step; and the losses of the steps."""

    def run(model: nn.Module, dtype: torch.dtype) -> Sequence[Tensor]:
        x = inputs(row, dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        seen: list[Tensor] = []
        for step in range(-1, STEPS):
            model.train(step >= 0)
            optimizer.zero_grad()
            logits = model(x)
            loss = functional.cross_entropy(logits, labels)
            loss.backward()
            if step <= 0:
                seen += [
                    logits.detach(),
                    *(p.grad.clone() for p in model.parameters() if p.grad is not None),
                ]
            if step >= 0:
                optimizer.step()
            seen.append(loss.detach())
        return seen

    return run


@pytest.mark.long(every=8)
def test_training(row: Model) -> None:
    model = row.build(narrow=True)
    run = train(row, training_step(model, inputs(row)).labels)
    with integration.enabled():
        got = run(copy.deepcopy(model), torch.float32)
    assert_as_promised(got, model, run)
    assert calls_seen() >= least_calls(row, STEPS)


def infer(row: Model, calls: int) -> Run:
    def run(model: nn.Module, dtype: torch.dtype) -> Sequence[Tensor]:
        with torch.inference_mode():
            return [model(inputs(row, dtype)) for _ in range(calls)]

    return run


@pytest.mark.long(every=8)
def test_inference(row: Model) -> None:
    model, run = row.build(narrow=True).eval(), infer(row, CALLS)
    with integration.enabled():
        got = run(model, torch.float32)
    assert_as_promised(got, model, run)
    assert calls_seen() >= least_calls(row, CALLS)


@pytest.mark.long(every=8)
def test_optimize(row: Model) -> None:
    """Its own choice of algorithms, and every call of the layers on trial thereafter."""
    model, run = row.build(narrow=True).eval(), infer(row, 2)
    plan = integration.optimize(model, inputs(row), tune=False)
    assert_as_promised(run(plan, torch.float32), model, run)
