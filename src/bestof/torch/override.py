"""Our kernels in PyTorch's dispatcher, below autograd, in place of its own: every module, functional call and library
on top of PyTorch goes through them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bestof.errors import TorchError
from bestof.torch.accuracy import Accuracy
from bestof.torch.configuration import Configuration
from bestof.torch.convolution.layer import ConvolutionLayer, Gradients, LayerProblem
from bestof.torch.convolution.memory_format import layout_of
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.packed_weights import PackedWeightsCache
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.device import CPU, Device

# A subclass may mean something else by the operations that alternatives are made of.
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
# Calls whose problems stay known; a program whose shapes never repeat must not grow.
_REMEMBERED = 4096
_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16})
_Library: Any = torch.library.Library  # has no annotations


def originals(key: str = "CPU") -> Originals:
    """The kernels in place at present for this dispatch key: PyTorch's own, unless something was enabled before.

    Raises TorchError where PyTorch cannot hand its kernels out.
    """
    if not hasattr(torch.library, "get_kernel"):
        raise TorchError(
            f"PyTorch {torch.__version__} has no torch.library.get_kernel, by which its own convolution is kept as the "
            f"first alternative; install torch 2.13 or newer"
        )
    return Originals(_original("aten::convolution", key), _original("aten::convolution_backward", key))


def _original(name: str, key: str) -> Any:
    call = torch.library.get_kernel(name, key).call_boxed
    keyset = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return partial(call, keyset)


class _Known:
    """What calls look like, and their problems: a look-up of 1.1 microseconds in place of checks that take 8."""

    __slots__ = ("accuracy", "problems")

    def __init__(self, accuracy: Accuracy) -> None:
        self.accuracy = accuracy
        self.problems: dict[Hashable, ConvProblem | None] = {}


class ConvolutionOverride:
    """`aten::convolution` and `aten::convolution_backward` on a device, chosen among alternatives while registered.

    What is no 2-D convolution of dense float32, float64 or bfloat16 tensors, what PyTorch is to refuse, and everything
    while deterministic algorithms or exact results are asked for, goes to PyTorch's own kernel untouched: even two
    gradients that are computed apart differ in their last bits from those computed together. Raises TorchError where
    PyTorch cannot hand its own kernels out.
    """

    def __init__(self, device: Device = CPU) -> None:
        self.device = device
        self.packed = PackedWeightsCache(Configuration().packed_mib << 20)
        self.originals = replace(originals(device.key), packed=self.packed)
        self.layer = ConvolutionLayer(self.originals, device)
        self._library: Any = None
        self._known = _Known(Configuration().accuracy)

    def configure(self, configuration: Configuration) -> None:
        """From now on calls are answered within this accuracy, and packed weights take this much memory."""
        self.packed.limit = configuration.packed_mib << 20
        if self.packed.size > self.packed.limit:
            self.packed.clear()
        if self._known.accuracy != configuration.accuracy:
            self._known = _Known(configuration.accuracy)

    def register(self) -> None:
        """Put our kernels in; nothing where they are in."""
        if self._library is not None:
            return
        library = _Library("aten", "IMPL")
        try:
            library.impl("convolution", self._convolution, self.device.key, with_keyset=True, allow_override=True)
            library.impl("convolution_backward", self._backward, self.device.key, with_keyset=True, allow_override=True)
        except BaseException:
            library._destroy()
            raise
        self._library = library

    def remove(self) -> None:
        """Put PyTorch's own kernels back; nothing where they are in."""
        if self._library is not None:
            self._library._destroy()
            self._library = None
        self.layer.kept.clear()
        self.packed.clear()

    def _problem(
        self,
        input: Tensor,
        weight: Tensor,
        has_bias: bool,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> ConvProblem | None:
        """The problem of a valid 2-D convolution of a kind that the catalogues know; None for every other call."""
        if type(input) not in _PLAIN or type(weight) not in _PLAIN:
            return None
        dtype = input.dtype
        known = self._known  # another thread may put another one there
        if (
            dtype not in _DTYPES
            or known.accuracy == "exact"
            or weight.dtype is not dtype
            or not input.layout is weight.layout is torch.strided
            or not self.device.holds(input)
            or not self.device.holds(weight)
            or torch._C._get_deterministic_algorithms()
            or torch._C._get_tracing_state() is not None  # sizes are tensors there
        ):
            return None
        key = (
            input.shape,
            input.stride(),
            weight.shape,
            weight.stride(),
            dtype,
            has_bias,
            tuple(stride),
            tuple(padding),
            tuple(dilation),
            groups,
            torch.get_num_threads(),
            device := self.device.name(input),
        )
        try:
            return known.problems[key]
        except KeyError:
            pass
        problem = None
        if _is_valid(input.shape, weight.shape, stride, padding, dilation, groups):
            problem = ConvProblem.of(input, weight, has_bias, stride, padding, dilation, groups)
            problem = problem._replace(accuracy=known.accuracy, device=device)
            if min(problem.output_size) < 1:
                problem = None
        if len(known.problems) >= _REMEMBERED:
            known.problems.clear()
        known.problems[key] = problem
        return problem

    def _convolution(
        self,
        _keyset: object,
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
        problem = None
        if not transposed:
            problem = self._problem(input, weight, bias is not None, stride, padding, dilation, groups)
        if problem is None or not (bias is None or self._is_bias(bias, weight)):
            return self.originals.convolution(  # type: ignore[no-any-return]
                input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
            )
        if torch.is_grad_enabled():
            by_input, by_weight = input.requires_grad, weight.requires_grad
            if by_input or by_weight:
                return self.layer.forward(LayerProblem(problem, by_input, by_weight), input, weight, bias)
        return self.layer.infer(problem, input, weight, bias)

    def _backward(
        self,
        _keyset: object,
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
        problem = None
        if not transposed:
            has_bias = bias_sizes is not None and list(bias_sizes) != [0]  # autograd writes [0] for "no bias"
            problem = self._problem(input, weight, has_bias, stride, padding, dilation, groups)
        if problem is not None and self._is_gradient(grad_output, input, problem):
            mask = output_mask[0], output_mask[1], output_mask[2]
            return self.layer.backward(problem, grad_output, input, weight, layout_of(grad_output), mask)
        return self.originals.convolution_backward(  # type: ignore[no-any-return]
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

    def _is_bias(self, bias: Tensor, weight: Tensor) -> bool:
        return (
            type(bias) in _PLAIN
            and bias.dtype is weight.dtype
            and self.device.holds(bias)
            and bias.shape == weight.shape[:1]
        )

    def _is_gradient(self, grad_output: Tensor, input: Tensor, problem: ConvProblem) -> bool:
        return (
            type(grad_output) in _PLAIN
            and grad_output.dtype is input.dtype
            and grad_output.layout is torch.strided
            and self.device.holds(grad_output)
            and grad_output.shape == problem.output_shape
        )


def _is_valid(
    x: Sequence[int],
    w: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> bool:
    """Whether there is a 2-D convolution of an input of this shape with a weight of that one."""
    return (
        len(x) == len(w) == 4
        and len(stride) == len(padding) == len(dilation) == 2
        and groups > 0
        and x[1] == w[1] * groups
        and w[0] % groups == 0
        and 0 not in x
        and 0 not in w
        and min(*stride, *dilation) > 0
        and min(padding) >= 0
    )
