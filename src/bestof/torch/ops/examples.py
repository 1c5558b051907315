"""Numbers for the calls that `bestof bench operation` measures."""

from __future__ import annotations

import torch
from torch import Tensor


def random(*shape: int, seed: int = 0) -> Tensor:
    """Return the same normal numbers at each call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
