"""Builds an engine in this process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from importlib import import_module

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.engines.engine import Engine
from bestof.torch.engines.flat import FlatModel

Call = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Runs a model on the tensors of its inputs, and returns those of its outputs."""


def build(
    engine: Engine, flat: FlatModel, tensors: Sequence[Tensor], threads: int, accuracy: Accuracy
) -> Call:
    """Return what an engine makes of a model, for inputs like these."""
    # PyTorch traces some layers otherwise if gradients are off. The libraries warn of what is
    # deprecated in PyTorch.
    with torch.inference_mode(False), torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = import_module(engine.module)
        call: Call = module.build(flat, tensors, threads, accuracy, **engine.options)
    return call
