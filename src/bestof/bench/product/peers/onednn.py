"""oneDNN through PyTorch: a linear layer whose weights are reordered beforehand, as in compiled and
frozen models."""

from __future__ import annotations

import torch

from bestof.bench.convolution.case import samples_of
from bestof.bench.convolution.run import Run
from bestof.bench.product.case import Case, Operands


def version() -> str:
    return f"oneDNN of torch {torch.__version__}"


def prepare(case: Case) -> dict[str, Run]:
    """Return one run on reordered weights."""
    operands = Operands.of(case)
    a = torch.from_numpy(operands.a).contiguous()
    weight = torch.from_numpy(operands.b).t().contiguous()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, case.rows)
    last: list[torch.Tensor] = []

    def call() -> None:
        last[:] = [torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], "")]

    torch.set_grad_enabled(False)
    return {"onednn": Run(call, lambda: samples_of(last[0].numpy()))}
