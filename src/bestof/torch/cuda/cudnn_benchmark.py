"""PyTorch's own kernels with `torch.backends.cudnn.benchmark` on: cuDNN measures its algorithms, once for each problem.

Among its deterministic ones only: PyTorch keeps what cuDNN chose under a key that holds `deterministic` and not
`benchmark`, so that by the latter alone either setting would run what was found for the other, whichever came first.
cuDNN waits for the device while it measures, in the first call of a problem, and never again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from bestof.torch.convolution import as_is
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.cuda.events import is_capturing

SETTING = "benchmark"
"""What the name of a device says where the program itself has switched it on."""


def supports(problem: ConvProblem) -> bool:
    """Where the program has not switched it on anyway."""
    return not problem.empty and SETTING not in problem.device.split()


class _Switch:
    """The settings are the process's: they are on while any thread is inside, and then as they were before the first.

    What a thread captures into a graph is not measured in it: without a choice from before, cuDNN guesses.
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
    originals: Originals, input: Tensor, weight: Tensor, bias: Tensor | None, problem: ConvProblem
) -> Tensor:
    """The output (N, K, P, Q)."""
    with _switch.on():
        return as_is.forward(originals, input, weight, bias, problem)


def input_gradient(
    originals: Originals, grad_output: Tensor, weight: Tensor, problem: ConvProblem
) -> Tensor:
    """The gradient of the input (N, C, H, W)."""
    with _switch.on():
        return as_is.input_gradient(originals, grad_output, weight, problem)


def weight_gradient(
    originals: Originals, grad_output: Tensor, input: Tensor, problem: ConvProblem
) -> Tensor:
    """The gradient of the weight (K, C/g, R, S)."""
    with _switch.on():
        return as_is.weight_gradient(originals, grad_output, input, problem)
