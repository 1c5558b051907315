"""Models whose mode cannot be switched, and models that return objects."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bestof.torch as bt
from bestof.errors import TorchError

X = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Dropout(), nn.Flatten(), nn.Linear(288, 5)),
    )


def _exported(model: nn.Module) -> nn.Module:
    module: nn.Module = torch.export.export(model, (X,)).module()
    return module


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning")  # of PyTorch's own exporter
def test_an_exported_module_is_planned_as_it_is() -> None:
    model = _network().eval()
    exported = _exported(model)
    with pytest.raises(NotImplementedError):
        exported.eval()
    expected = copy.deepcopy(model).double()(X.double())
    for accuracy in ("float32", "exact"):
        found = bt.optimize(exported, X, accuracy=accuracy)(X)  # type: ignore[arg-type]
        # Sums of 28 and of 289 products of float32, whose operands are below 2.
        assert (found - expected).abs().max() <= 2.0**-24 * (28 + 289) * 4
    assert exported.training  # as it was


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning")
def test_a_module_that_was_exported_in_training_mode_is_refused() -> None:
    with pytest.raises(TorchError, match=r"call model.eval\(\) before torch.export.export"):
        bt.optimize(_exported(_network().train()), X)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning")
def test_a_model_around_an_exported_module_gets_a_remedy_that_works() -> None:
    model = nn.Sequential(_exported(_network().eval()))
    with pytest.raises(TorchError, match="set its `training` to False"):
        bt.optimize(model, X)
    model.training = False
    assert bt.optimize(model, X)(X).shape == (2, 5)


def test_a_part_in_training_mode_is_named() -> None:
    model = _network().eval()
    model[3].train()
    with pytest.raises(TorchError, match=r"3 is in training mode; call model.eval\(\) first"):
        bt.optimize(model, X)


class _Cache:
    def __init__(self, *values: Tensor) -> None:
        self.values = values


class _Caching(nn.Module):
    def __init__(self, use_cache: bool | None) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        if use_cache is not None:
            self.config = SimpleNamespace(use_cache=use_cache)

    def forward(self, x: Tensor) -> Any:
        y = self.linear(x)
        caches = not hasattr(self, "config") or self.config.use_cache
        return (y, _Cache(x)) if caches else (y,)


@pytest.mark.long
def test_a_cache_that_a_model_returns_is_named_with_its_remedy() -> None:
    x, model = torch.ones(2, 4), nn.Sequential(_Caching(use_cache=True)).eval()
    with pytest.raises(TorchError, match=r"_Cache.*set model\.0\.config\.use_cache = False"):
        bt.optimize(model, x)
    model[0].config.use_cache = False  # type: ignore[union-attr]
    assert bt.optimize(model, x)(x)[0].shape == (2, 4)
    with pytest.raises(TorchError, match="tensors, numbers, tuples, lists and dicts only"):
        bt.optimize(_Caching(use_cache=None).eval(), x)
