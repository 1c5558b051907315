"""One training step, the same for every peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """Forward, cross entropy, backward and SGD with momentum on one batch.

    `labels` are (N,), or (N, rows, columns) if the model labels pixels.
    """

    images: Tensor
    labels: Tensor
    rate: float = 1e-3
    momentum: float = 0.9

    def on(
        self, model: nn.Module, images: Tensor, call: Callable[[Tensor], Any] | None = None
    ) -> Callable[[], float]:
        """Return a function that makes one step and returns its loss.

        `images` are in the layout that the peer wants. `call`, if given, is called instead of the
        model.
        """
        optimizer = torch.optim.SGD(model.parameters(), lr=self.rate, momentum=self.momentum)
        forward = (
            model if call is None else call
        )  # a compiled model that has no length has no truth value either

        def run() -> float:
            optimizer.zero_grad()
            loss = functional.cross_entropy(forward(images), self.labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.item()

        return run


def training_step(model: nn.Module, images: Tensor) -> TrainingStep:
    """Make labels that fit the model's output, and put the model into training mode.

    Dropout is off, so that the losses of peers can be compared.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.eval()
    with torch.no_grad():
        shape = model(images[:1]).shape
    model.train()
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, shape[1], (len(images), *shape[2:]), generator=generator)
    return TrainingStep(images, labels.to(images.device))
