"""Copies of models around the same tensors."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from torch import nn


def copied_model(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a deep copy of a model, which keeps what `memo` maps to itself.

    PyTorch warns of its own tree of an exported module when that is copied.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*treespec", category=FutureWarning)
        return copy.deepcopy(model, memo)
