"""oneDNN in bfloat16 through PyTorch, as frozen models of that type run it; forward only."""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

from bestof.bench.convolution.case import Case, Operands, samples_of
from bestof.bench.convolution.run import Run


def version() -> str:
    """Return what is measured."""
    return f"oneDNN in bfloat16 of torch {torch.__version__}"


def prepare(case: Case) -> dict[str, Run]:
    """Return one run for a case of bfloat16; none for others."""
    if case.dtype != "bfloat16" or case.direction != "forward":
        return {}
    torch.set_grad_enabled(False)
    operands = Operands.of(case)
    x, w = (
        torch.from_numpy(array).permute(0, 3, 1, 2).bfloat16() for array in (operands.x, operands.w)
    )
    stride, padding, dilation = list(case.stride), list(case.padding), list(case.dilation)
    packed = torch._C._nn.mkldnn_reorder_conv2d_weight(
        w.contiguous().to_mkldnn(),
        padding,
        stride,
        dilation,
        case.groups,
        list(x.shape),  # type: ignore[call-arg]
    )
    bias = torch.from_numpy(operands.bias).bfloat16()
    last: list[Tensor] = []

    def call() -> None:
        last[:] = [
            torch.ops.mkldnn._convolution_pointwise(
                x, packed, bias, padding, stride, dilation, case.groups, "relu", [], None
            )
        ]

    def samples() -> list[float]:
        return samples_of(numpy.ascontiguousarray(last[0].float().permute(0, 2, 3, 1).numpy()))

    return {"onednn_bf16": Run(call, samples)}
