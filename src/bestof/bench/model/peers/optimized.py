"""`bestof.torch.optimize`: an inference plan."""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor, nn

import bestof.torch as integration
from bestof.accuracy import Accuracy
from bestof.bench.model.peers.eager import inference
from bestof.bench.model.peers.prepared import Prepared


def prepare(
    model: nn.Module, example: Tensor, _threads: int, *, accuracy: Accuracy = "float32"
) -> Prepared:
    """Return the plan for this example, its algorithms chosen."""
    plan = integration.optimize(model, example, accuracy=accuracy)
    original = inference(model, example)
    return Prepared(
        inference(plan, example), replaced=lambda: nullcontext(original), alone=plan.release
    )
