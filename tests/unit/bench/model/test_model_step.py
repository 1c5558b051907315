"""Training steps as `bestof bench model --train` times them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from bestof.bench.model.step import training_step


class Compiled:
    """Stands in for a model, as torch.compile's result does: its length is the model's, which may
    have none.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model, self.calls = model, 0

    def __len__(self) -> int:
        raise TypeError("it does not support len()")

    def __call__(self, images: Tensor) -> Tensor:
        self.calls += 1
        return self.model(images)


def test_what_stands_in_for_the_model_is_called_and_the_model_learns() -> None:
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), torch.randn(4, 3, 2, 2)
    compiled = Compiled(model)
    run = training_step(model, images).on(model, images, call=compiled)
    losses = [run() for _ in range(5)]
    assert compiled.calls == 5
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_dropout_is_off_so_that_losses_can_be_compared() -> None:
    torch.manual_seed(0)
    dropping, images = (
        nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(12, 3)),
        torch.randn(4, 3, 2, 2),
    )
    plain = copy.deepcopy(nn.Sequential(dropping[0], dropping[2]))
    losses = [training_step(model, images).on(model, images)() for model in (dropping, plain)]
    assert losses[0] == losses[1]
