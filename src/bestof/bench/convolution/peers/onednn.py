"""oneDNN through PyTorch, in channels last.

The forward pass runs as in compiled and frozen models: weights reordered beforehand, bias and ReLU
fused. The gradients run as in eager training.
"""

from __future__ import annotations

import numpy
import torch
from torch import Tensor

from bestof.bench.convolution.case import Case, Operands, samples_of
from bestof.bench.convolution.run import Run


def version() -> str:
    """Return what is measured."""
    return f"oneDNN of torch {torch.__version__}"


def prepare(case: Case) -> dict[str, Run]:
    """Return one run: oneDNN chooses its algorithm itself."""
    operands = Operands.of(case)
    x, w, grad = (
        torch.from_numpy(array).permute(0, 3, 1, 2)
        for array in (operands.x, operands.w, operands.grad)
    )
    stride, padding, dilation = list(case.stride), list(case.padding), list(case.dilation)
    last: list[Tensor] = []
    if case.direction == "forward":
        packed = torch._C._nn.mkldnn_reorder_conv2d_weight(
            w.contiguous().to_mkldnn(),
            padding,
            stride,
            dilation,
            case.groups,
            list(x.shape),  # type: ignore[call-arg]
        )
        bias = torch.from_numpy(operands.bias)

        def call() -> None:
            last[:] = [
                torch.ops.mkldnn._convolution_pointwise(
                    x, packed, bias, padding, stride, dilation, case.groups, "relu", [], None
                )
            ]
    else:
        of_input = case.direction == "input gradient"
        mask = [of_input, not of_input, False]

        def call() -> None:
            results = torch.ops.aten.convolution_backward(
                grad, x, w, None, stride, padding, dilation, False, [0, 0], case.groups, mask
            )
            last[:] = [results[0] if of_input else results[1]]

    def samples() -> list[float]:
        return samples_of(numpy.ascontiguousarray(last[0].permute(0, 2, 3, 1).numpy()))

    torch.set_grad_enabled(False)
    return {"onednn": Run(call, samples)}
