"""`bestof.torch.optimize`: a fused plan."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

import bestof.torch as integration
from bestof.bench.model_peers.eager import inference
from bestof.bench.model_peers.prepared import Prepared
from bestof.errors import TorchError


def prepare(model: nn.Module, example: Tensor, _threads: int, *, accuracy: str = "float32") -> Prepared:
    """The plan for this example."""
    optimize: Any = getattr(integration, "optimize", None)
    if optimize is None:
        raise TorchError("this version of bestof has no optimize")
    plan = optimize(model, example, config={"kernel": {"accuracy": accuracy}})
    original = inference(model, example)
    return Prepared(inference(plan, example), replaced=lambda: nullcontext(original))
