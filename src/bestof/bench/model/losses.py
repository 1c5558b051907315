"""The losses of a training, by PyTorch alone and again while bestof chooses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from bestof.bench.model.models import Model, Size
from bestof.torch import enabled


@dataclass(frozen=True, slots=True)
class Training:
    """Steps of SGD with momentum, each on a new batch. Equal trainings see equal batches."""

    batch: int
    steps: int
    size: Size | None = None
    narrow: bool = False
    rate: float = 1e-2
    momentum: float = 0.9


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of the steps of one training: by PyTorch, and while bestof chooses."""

    pytorch: tuple[float, ...]
    bestof: tuple[float, ...]

    @property
    def apart(self) -> float:
        """Return the largest distance of two losses of the same step. NaN makes it infinite."""
        distances = (abs(a - b) for a, b in zip(self.bestof, self.pytorch, strict=True))
        return max(math.inf if math.isnan(distance) else distance for distance in distances)


def compare_losses(model: Model, training: Training) -> Losses:
    """Train twice from the same weights, without bestof and with it."""
    return Losses(_train(model, training, nullcontext()), _train(model, training, enabled()))


def _train(
    model: Model, training: Training, choice: AbstractContextManager[None]
) -> tuple[float, ...]:
    module = model.build(training.size, narrow=training.narrow)
    optimizer = torch.optim.SGD(module.parameters(), lr=training.rate, momentum=training.momentum)
    losses = []
    with choice:
        for inputs, labels in _batches(model, training, module):
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
    return tuple(losses)


def _batches(
    model: Model, training: Training, module: nn.Module
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and labels that a model can learn.

    A text of class c counts upwards in steps of c + 1. Its label is the class, or each next token
    if the model predicts tokens. An image of class c is noise around a brightness.
    """
    sample = model.inputs(training.batch, training.size, narrow=training.narrow)
    module.eval()
    with torch.no_grad():
        logits = module(sample[:1])
    module.train()
    generator = torch.Generator().manual_seed(2)
    for _ in range(training.steps):
        classes = torch.randint(min(10, logits.shape[1]), (training.batch,), generator=generator)
        if not model.text:
            noise = torch.randn(sample.shape, generator=generator)
            yield noise + classes.reshape(-1, 1, 1, 1) / 20, classes
            continue
        vocabulary = int(sample.max()) + 1
        begin = torch.randint(vocabulary, (training.batch, 1), generator=generator)
        tokens = (begin + (classes + 1)[:, None] * torch.arange(sample.shape[1] + 1)) % vocabulary
        yield tokens[:, :-1], classes if logits.dim() == 2 else tokens[:, 1:]
