"""PyTorch's own kernels with `torch.backends.cudnn.benchmark`, which lets cuDNN measure.

Only cuDNN's deterministic algorithms are measured. The reason is PyTorch's cache of cuDNN's
choices: its key holds `deterministic` but not `benchmark`. With `benchmark` alone, each setting
would use the choice of the other. cuDNN waits for the device in the first call of a problem only.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from bestof.torch.backends.cuda.device import SETTING
from bestof.torch.backends.cuda.events import is_capturing
from bestof.torch.ops.convolution import as_is
from bestof.torch.ops.convolution.direction import Passes
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.row import Row


def supports(problem: ConvProblem) -> bool:
    """Return false if the program itself has switched the benchmark on."""
    return not problem.empty and SETTING not in problem.device.split()


class _Switch:
    """Switches the settings of the process on while any thread is inside, and then back.

    While a thread captures a graph, nothing is measured. Without an earlier choice, cuDNN uses its
    heuristics.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = (False, False)

    @contextmanager
    def on(self) -> Iterator[None]:
        with self._lock:
            if self._inside == 0:
                self._before = torch._C._get_cudnn_benchmark(), torch._C._get_cudnn_deterministic()
                torch._C._set_cudnn_deterministic(True)
            if not is_capturing():
                torch._C._set_cudnn_benchmark(True)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    torch._C._set_cudnn_benchmark(self._before[0])
                    torch._C._set_cudnn_deterministic(self._before[1])


_switch = _Switch()


def forward(
    originals: PyTorchConv, problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Return the output (N, K, P, Q)."""
    with _switch.on():
        return as_is.forward(originals, problem, input, weight, bias)


def input_gradient(
    originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, weight: Tensor
) -> Tensor:
    """Return the gradient of the input (N, C, H, W)."""
    with _switch.on():
        return as_is.input_gradient(originals, problem, grad_output, weight)


def weight_gradient(
    originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, input: Tensor
) -> Tensor:
    """Return the gradient of the weight (K, C/g, R, S)."""
    with _switch.on():
        return as_is.weight_gradient(originals, problem, grad_output, input)


_row = partial(Row, "cudnn benchmark", supports=supports, accuracy="float32", devices=("CUDA",))
ROWS: Passes = _row(forward), _row(input_gradient), _row(weight_gradient)
