"""PyTorch itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.engines.build import Call
from bestof.torch.engines.flat import FlatModel


def build(flat: FlatModel, _tensors: Sequence[Tensor], _threads: int, _accuracy: Accuracy) -> Call:
    """Return the model, without gradients."""

    def call(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        with torch.no_grad():
            outputs: tuple[Tensor, ...] = flat(*tensors)
            return outputs

    return call
