"""The plan as an engine among others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bestof.accuracy import Accuracy
from bestof.torch.engines.build import Call
from bestof.torch.engines.flat import FlatModel
from bestof.torch.plan.optimize import optimize


def build(flat: FlatModel, tensors: Sequence[Tensor], _threads: int, accuracy: Accuracy) -> Call:
    """Return the plan of the model, its algorithms chosen."""
    plan = optimize(flat.model, *flat.arguments(tensors), accuracy=accuracy)

    def call(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        args, kwargs = flat.arguments(tensors)
        with torch.no_grad():
            outputs = plan(*args, **kwargs)
        return [one for one in pytree.tree_leaves(outputs) if isinstance(one, Tensor)]

    return call
