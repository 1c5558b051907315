"""MKL through PyTorch: what a program without bestof calls."""

from __future__ import annotations

import torch

from bestof.bench.convolution.case import samples_of
from bestof.bench.convolution.run import Run
from bestof.bench.product.case import Case, Operands


def version() -> str:
    return f"MKL of torch {torch.__version__}"


def prepare(case: Case) -> dict[str, Run]:
    operands = Operands.of(case)
    a, b = torch.from_numpy(operands.a), torch.from_numpy(operands.b)
    out = torch.empty(case.rows, case.columns)
    return {"mkl": Run(lambda: torch.mm(a, b, out=out), lambda: samples_of(out.numpy()))}
