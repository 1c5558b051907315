"""oneDNN in bfloat16 through PyTorch, as frozen models of that type run it; forward only."""

from __future__ import annotations

import torch

from bestof.bench.convolution.case import Case
from bestof.bench.convolution.peers.onednn import forward
from bestof.bench.convolution.run import Run


def version() -> str:
    return f"oneDNN in bfloat16 of torch {torch.__version__}"


def prepare(case: Case) -> dict[str, Run]:
    """Return one run for a case of bfloat16; none for others."""
    if case.dtype != "bfloat16" or case.direction != "forward":
        return {}
    torch.set_grad_enabled(False)
    return {"onednn_bf16": forward(case, torch.bfloat16)}
