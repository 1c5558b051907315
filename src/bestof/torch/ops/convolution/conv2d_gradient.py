"""What both gradients of 2-D convolutions share: how a call is recognized."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass, example
from bestof.torch.ops.convolution.recognition import is_gradient, look_of, problem_of
from bestof.torch.ops.memory_format import layout_of
from bestof.torch.ops.operation import Call, Operands


class Conv2dGradient(Conv2dPass):
    """One of the gradients that `aten::convolution_backward` returns."""

    operator = "aten::convolution_backward"

    def call(
        self,
        level: Accuracy,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        _bias_sizes: Any,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        _output_padding: Sequence[int],
        groups: int,
        _mask: Sequence[bool],
    ) -> Call | None:
        """Return the problem and the operands of a gradient; None if PyTorch answers it."""
        call = (self.device, level, input, weight, False, (stride, padding, dilation, groups))
        if transposed or len(stride) != 2 or not is_gradient(self.device, grad_output, input):
            return None
        problem = None if look_of(*call) is None else problem_of(*call)
        if problem is None or grad_output.shape != problem.output_shape:
            return None
        problem = problem._replace(grad_layout=layout_of(grad_output))
        return Call(problem, self.read(grad_output, input, weight))

    @abstractmethod
    def read(self, grad_output: Tensor, input: Tensor, weight: Tensor) -> Operands:
        """Return the operands that the gradient is computed from."""

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return the gradient of a layer of ResNet34."""
        x, w, geometry = example()
        return {"2 x 64 x 28 x 28, 3x3": (x, x, w, None, *geometry, (True, True, False))}
