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
    return f"oneDNN of torch {torch.__version__}"


def prepare(case: Case) -> dict[str, Run]:
    """Return one run: oneDNN chooses its algorithm itself."""
    torch.set_grad_enabled(False)
    if case.direction == "forward":
        return {"onednn": forward(case, torch.float32)}
    x, w, grad, _ = _tensors(case, torch.float32)
    of_input = case.direction == "input gradient"
    mask = [of_input, not of_input, False]
    last: list[Tensor] = []

    def call() -> None:
        results = torch.ops.aten.convolution_backward(
            *(grad, x, w, None, case.stride, case.padding, case.dilation),
            *(False, [0, 0], case.groups, mask),
        )
        last[:] = [results[0] if of_input else results[1]]

    return {"onednn": Run(call, lambda: _samples(last[0]))}


def forward(case: Case, dtype: torch.dtype) -> Run:
    """Return the run of a forward pass with packed weights, bias and ReLU."""
    x, w, _, bias = _tensors(case, dtype)
    stride, padding, dilation = list(case.stride), list(case.padding), list(case.dilation)
    packed = torch._C._nn.mkldnn_reorder_conv2d_weight(
        w.contiguous().to_mkldnn(),
        padding,
        stride,
        dilation,
        case.groups,
        list(x.shape),  # type: ignore[call-arg]
    )
    last: list[Tensor] = []

    def call() -> None:
        last[:] = [
            torch.ops.mkldnn._convolution_pointwise(
                x, packed, bias, padding, stride, dilation, case.groups, "relu", [], None
            )
        ]

    return Run(call, lambda: _samples(last[0]))


def _tensors(case: Case, dtype: torch.dtype) -> list[Tensor]:
    """Return the input, the weights and the gradient in channels last, and the bias."""
    operands = Operands.of(case)
    arrays = operands.x, operands.w, operands.grad
    tensors = [torch.from_numpy(array).permute(0, 3, 1, 2) for array in arrays]
    return [one.to(dtype) for one in (*tensors, torch.from_numpy(operands.bias))]


def _samples(result: Tensor) -> list[float]:
    return samples_of(numpy.ascontiguousarray(result.float().permute(0, 2, 3, 1).numpy()))
