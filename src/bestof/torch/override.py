"""Our kernels in PyTorch's dispatcher, below autograd, in place of its own: every module, functional call and library
on top of PyTorch goes through them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bestof.configuration import Configuration
from bestof.errors import NoAlternative, TorchError
from bestof.torch.accuracy import ACCURACIES, Accuracy
from bestof.torch.convolution.layer import ConvolutionLayer, Gradients
from bestof.torch.convolution.memory_format import layout_of
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.packed_weights import PackedWeightsCache
from bestof.torch.convolution.problem import ConvProblem, LayerProblem
from bestof.torch.device import CPU, Device
from bestof.torch.kept_kernels import keep_kernel
from bestof.torch.modes import hidden_from_modes
from bestof.torch.shim import make_shim

# A subclass may mean something else by the operations that alternatives are made of.
_PLAIN = frozenset({Tensor, torch.nn.Parameter})
# Calls whose problems stay known; a program whose shapes never repeat must not grow.
_REMEMBERED = 4096
# A stride, padding or dilation that no image has, and elements of an image, its padding included,
# that no memory holds. PyTorch answers or refuses such a call at once.
_ABSURD = 2**24
_LARGEST = 2**36
_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16})
_deterministic, _tracing, _threads = (
    torch._C._get_deterministic_algorithms,
    torch._C._get_tracing_state,
    torch.get_num_threads,
)
_Library: Any = torch.library.Library  # has no annotations
_OPERATIONS = ("aten::convolution", "aten::convolution_backward")


def originals(key: str = "CPU") -> Originals:
    """The kernels in place at present for this dispatch key: PyTorch's own, unless something was enabled before.

    Raises TorchError where PyTorch cannot hand its kernels out.
    """
    if not hasattr(torch.library, "get_kernel"):
        raise TorchError(
            f"PyTorch {torch.__version__} has no torch.library.get_kernel, by which its own convolution is kept as the "
            f"first alternative; install torch 2.13 or newer"
        )
    return Originals(*(_original(name, key) for name in _OPERATIONS))


def _as_is(originals: Originals, key: str) -> Callable[..., Any]:
    """The convolution that the dispatcher would call next, for calls from inside a kernel of it.

    Where that is PyTorch's own on the CPU, by the function that it calls in turn: boxing arguments takes 2.7
    microseconds more.
    """
    if key != "CPU" or torch._C._dispatch_has_kernel_for_dispatch_key("aten::convolution", key):
        return originals.convolution
    return _convolution_of_pytorch


def _convolution_of_pytorch(
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
    # The last four are for CUDA.
    return torch._convolution(
        input,
        weight,
        bias,
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
        False,
        False,
        False,
        False,
    )


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

    by_shim: where PyTorch as is was chosen, or a kernel of ours that can do so, calls are answered without Python, if
    that can be (see `make_shim`).
    """

    def __init__(self, device: Device = CPU, *, by_shim: bool = True) -> None:
        self.device = device
        self.packed = PackedWeightsCache(Configuration().packed_mib << 20)
        self.originals = replace(originals(device.key), packed=self.packed)
        self.layer = ConvolutionLayer(self.originals, device)
        self._as_is = _as_is(self.originals, device.key)
        self._library: Any = None
        self._forward_kernel = hidden_from_modes(self._convolution)
        self._backward_kernel = hidden_from_modes(self._backward)
        self._shim = None
        if by_shim and device is CPU:
            self._shim = make_shim(
                self._forward_kernel, self._backward_kernel, self.layer.kept.entries
            )
        self._is_shim_in = False
        if self._shim is not None:
            self.layer.forget = self._shim.forget
            self.packed.shim = self._shim
        self._set_accuracy(Configuration().accuracy)

    def configure(self, configuration: Configuration) -> None:
        """From now on calls are answered within this accuracy, and packed weights take this much memory."""
        self.packed.limit = configuration.packed_mib << 20
        if self.packed.size > self.packed.limit:
            self.packed.clear()
        if self._known.accuracy != configuration.accuracy:
            self._set_accuracy(configuration.accuracy)

    def _set_accuracy(self, accuracy: Accuracy) -> None:
        self._known = _Known(accuracy)
        if self._shim is not None:
            self._shim.set_level(ACCURACIES.index(accuracy))

    def register(self) -> None:
        """Put our kernels in; nothing where they are in."""
        if self._library is not None or self._is_shim_in:
            return
        self._is_shim_in = self._shim is not None and self._shim.put_in()
        if not self._is_shim_in:
            self._put_in()
        for name in _OPERATIONS:
            keep_kernel(name, self.device.key)

    def _put_in(self) -> None:
        library = _Library("aten", "IMPL")
        try:
            library.impl("convolution", self._forward_kernel, self.device.key, allow_override=True)
            library.impl(
                "convolution_backward", self._backward_kernel, self.device.key, allow_override=True
            )
        except BaseException:
            library._destroy()
            raise
        self._library = library

    def remove(self) -> None:
        """Put PyTorch's own kernels back; nothing where they are in."""
        if self._shim is not None and self._is_shim_in:
            self._shim.take_out()
            self._is_shim_in = False
        if self._library is not None:
            self._library._destroy()
            self._library = None
        self.layer.kept.clear()
        self.packed.clear()

    def _key(
        self,
        input: Tensor,
        weight: Tensor,
        has_bias: bool,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> tuple[Hashable, ...] | None:
        """What a call looks like, the level of accuracy included; None for one that is none of ours."""
        if type(input) not in _PLAIN or type(weight) not in _PLAIN:
            return None
        dtype, accuracy = input.dtype, self._known.accuracy
        if (
            dtype not in _DTYPES
            or accuracy == "exact"
            or weight.dtype is not dtype
            or not input.layout is weight.layout is torch.strided
            or not self.device.holds(input)
            or not self.device.holds(weight)
            or _deterministic()
            or _tracing() is not None  # sizes are tensors there
        ):
            return None
        return (
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
            _threads(),
            self.device.name(input),
            accuracy,
        )

    def _problem(
        self,
        key: tuple[Hashable, ...],
        input: Tensor,
        weight: Tensor,
        has_bias: bool,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> ConvProblem | None:
        """The problem of a valid 2-D convolution of a kind that the catalogues know; None for every other call."""
        known = self._known  # another thread may put another one there
        try:
            return known.problems[key]
        except KeyError:
            pass
        problem = None
        if _is_valid(input.shape, weight.shape, stride, padding, dilation, groups):
            problem = ConvProblem.of(input, weight, has_bias, stride, padding, dilation, groups)
            problem = problem._replace(device=key[-2], accuracy=key[-1])  # type: ignore[arg-type]
            if min(problem.output_size) < 1 or problem.largest_image > _LARGEST:
                problem = None
        if len(known.problems) >= _REMEMBERED:
            known.problems.clear()
        known.problems[key] = problem
        return problem

    def _convolution(
        self,
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
        if transposed or len(stride) != 2:  # none of ours: 2.9 microseconds in place of 6 to 9
            return self._as_is(  # type: ignore[no-any-return]
                input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
            )
        problem = None
        shim = self._shim if self._is_shim_in else None
        # From before the level of accuracy and decisions are looked up: after a change since then, what is noted is not
        # believed.
        generation = 0 if shim is None else shim.generation
        key = self._key(input, weight, bias is not None, stride, padding, dilation, groups)
        if key is not None and (bias is None or self._is_bias(bias, weight)):
            problem = self._problem(
                key, input, weight, bias is not None, stride, padding, dilation, groups
            )
        if problem is None:
            return self.originals.convolution(  # type: ignore[no-any-return]
                input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
            )
        met: ConvProblem | LayerProblem = problem
        is_training = torch.is_grad_enabled()
        if is_training and (input.requires_grad or weight.requires_grad):
            met = LayerProblem(problem, input.requires_grad, weight.requires_grad)
        layer = self.layer
        found = layer.find_forward(met)
        if found.native is not None and shim is not None and shim.refused:
            return layer.forward_unseen(found, input, weight, bias)
        # The shim cannot see which operands want gradients. Nearly always both do; what else looks so is answered right
        # all the same, as PyTorch would.
        is_noted = (
            shim is not None
            and (found.chosen or found.native is not None)
            and (not is_training or (input.requires_grad and weight.requires_grad))
            and shim.note(generation, found.counts, found.native)
        )
        try:
            return (layer.ask_forward if is_noted else layer.forward)(found, input, weight, bias)
        except NoAlternative:  # memory is short, say: the program gets PyTorch's own error
            return self.originals.convolution(  # type: ignore[no-any-return]
                input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
            )

    def _backward(
        self,
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
        key = problem = None
        shim = self._shim if self._is_shim_in else None
        generation = 0 if shim is None else shim.generation
        if not transposed and self._is_plain(grad_output, input):
            has_bias = bias_sizes is not None and list(bias_sizes) != [
                0
            ]  # autograd writes [0] for "no bias"
            key = self._key(input, weight, has_bias, stride, padding, dilation, groups)
        if key is not None:
            problem = self._problem(key, input, weight, has_bias, stride, padding, dilation, groups)
        if problem is None or grad_output.shape != problem.output_shape:
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
        layer, grad_layout = self.layer, layout_of(grad_output)
        mask: tuple[bool, bool, bool] = tuple(output_mask)  # type: ignore[assignment]
        trained = LayerProblem(problem, input.requires_grad, weight.requires_grad)
        if mask[:2] != trained[1:]:
            return layer.part_of_backward(trained, grad_output, input, weight, grad_layout, mask)
        found = layer.find_backward(trained, grad_layout)
        is_noted = shim is not None and found.chosen and shim.note(generation, found.counts, None)
        try:
            return (layer.ask_backward if is_noted else layer.backward)(
                found, grad_output, input, weight, mask
            )
        except NoAlternative:  # as in a forward pass
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

    def _is_plain(self, grad_output: Tensor, input: Tensor) -> bool:
        return (
            type(grad_output) in _PLAIN
            and type(input) in _PLAIN  # before its dtype is asked for, which a subclass would see
            and grad_output.dtype is input.dtype
            and grad_output.layout is torch.strided
            and self.device.holds(grad_output)
        )


def _is_valid(
    x: Sequence[int],
    w: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> bool:
    """Return whether there is a 2-D convolution of these shapes that is worth choosing for."""
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
        and max(*stride, *padding, *dilation) < _ABSURD
    )
