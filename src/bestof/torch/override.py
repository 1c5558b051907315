"""Our kernels in PyTorch's dispatcher, below autograd, in place of its own: every module, functional call and library
on top of PyTorch goes through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bestof.torch.convolution.layer import ConvolutionLayer, Gradients, LayerProblem
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.problem import ConvProblem

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


def _original(name: str) -> Any:
    kernel = torch.library.get_kernel(name, "CPU")
    return lambda *args: kernel.call_boxed(_CPU, *args)


class ConvolutionOverride:
    """`aten::convolution` and `aten::convolution_backward` on the CPU, chosen among alternatives while registered.

    What is no 2-D convolution of dense float32 or float64 tensors, and what PyTorch is to refuse, goes to PyTorch's
    own kernel untouched.
    """

    def __init__(self) -> None:
        self._originals = Originals(_original("aten::convolution"), _original("aten::convolution_backward"))
        self.layer = ConvolutionLayer(self._originals)
        self._library: torch.library.Library | None = None

    def register(self) -> None:
        """Put our kernels in."""
        library = torch.library.Library("aten", "IMPL")
        library.impl("convolution", self._convolution, "CPU", with_keyset=True, allow_override=True)
        library.impl("convolution_backward", self._convolution_backward, "CPU", with_keyset=True, allow_override=True)
        self._library = library

    def remove(self) -> None:
        """Put PyTorch's own kernels back."""
        if self._library is not None:
            self._library._destroy()
            self._library = None
        self.layer.forget_kept()

    def _convolution(
        self,
        keyset: object,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> Tensor:
        if transposed or not _is_ours(input, weight, bias, stride, padding, dilation, groups):
            return self._originals.convolution(  # type: ignore[no-any-return]
                input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
            )
        problem = ConvProblem.of(input, weight, bias is not None, stride, padding, dilation, groups)
        if min(problem.output_size) < 1:
            return self._originals.convolution(  # type: ignore[no-any-return]
                input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
            )
        if torch.is_grad_enabled():
            wanted = input.requires_grad, weight.requires_grad, bias is not None and bias.requires_grad
            if any(wanted):
                return self.layer.forward(LayerProblem(problem, *wanted), input, weight, bias)
        return self.layer.infer(problem, input, weight, bias)

    def _convolution_backward(
        self,
        keyset: object,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        bias_sizes: Sequence[int] | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
        output_mask: Sequence[bool],
    ) -> Gradients:
        if (
            transposed
            or not _is_ours(input, weight, grad_output, stride, padding, dilation, groups)
            or grad_output.numel() == 0
        ):
            return self._originals.convolution_backward(  # type: ignore[no-any-return]
                grad_output,
                input,
                weight,
                bias_sizes,
                stride,
                padding,
                dilation,
                transposed,
                output_padding,
                groups,
                output_mask,
            )
        has_bias = bias_sizes is not None and list(bias_sizes) != [0]  # autograd writes [0] for "no bias"
        problem = ConvProblem.of(input, weight, has_bias, stride, padding, dilation, groups, grad_output)
        layer = LayerProblem(problem._replace(grad_layout=""), *output_mask)
        return self.layer.backward(layer, grad_output, input, weight, problem.grad_layout)


def _is_ours(
    input: Tensor,
    weight: Tensor,
    other: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> bool:
    """Whether these are operands of a valid 2-D convolution of a kind that the catalogues know."""
    return (
        input.dim() == 4
        and weight.dim() == 4
        and input.dtype == weight.dtype
        and input.dtype in (torch.float32, torch.float64)
        and (other is None or other.dtype == input.dtype)
        and input.layout == weight.layout == torch.strided
        and weight.device.type == "cpu"
        and len(stride) == len(padding) == len(dilation) == 2
        and groups > 0
        and input.shape[1] == weight.shape[1] * groups
        and weight.shape[0] % groups == 0
        and input.numel() > 0
        and weight.numel() > 0
        and min(*stride, *dilation) > 0
        and min(padding) >= 0
    )
