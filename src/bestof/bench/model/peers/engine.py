"""The engines of `optimize(..., engines=)`, for inference."""

from __future__ import annotations

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bestof.bench.model.peers.prepared import Prepared
from bestof.torch.engines.build import build
from bestof.torch.engines.flat import FlatModel
from bestof.torch.engines.table import find_engines


def prepare(model: nn.Module, example: Tensor, threads: int, *, engine: str) -> Prepared:
    """Build the engine of this name for exactly this shape."""
    (row,) = find_engines([engine])
    flat = FlatModel(model, *pytree.tree_flatten(((example,), {})))
    call = build(row, flat, [example], threads, "float32")
    return Prepared(lambda: call([example])[0])
