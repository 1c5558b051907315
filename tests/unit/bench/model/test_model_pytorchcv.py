"""Models of pytorchcv as the benchmark builds them."""

from __future__ import annotations

import pytest
import torch

from bestof.bench.model.models import find_model
from bestof.bench.model.peers.eager import prepare_training
from bestof.bench.model.step import training_step


@pytest.mark.long
@pytest.mark.parametrize("name", ["vgg16", "vgg16-cifar"])
def test_vgg16_trains_in_either_layout(name: str) -> None:
    losses = []
    for channels_last in (False, True):
        model = find_model(name).build((64, 96), narrow=True)
        step = training_step(
            model, torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(2))
        )
        run = prepare_training(model, step, 1, channels_last=channels_last).run
        losses.append([run(), run()])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[0][1] != losses[0][0]


@pytest.mark.parametrize("name", ["vgg16", "vgg16-cifar"])
def test_vgg16_has_the_layers_of_pytorchcv(name: str) -> None:
    model = find_model(name).build(narrow=True)
    assert list(dict(model.named_children())) == ["features", "flatten", "output"]
    convolutions = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
    assert len(convolutions) == 13
