"""Puts bestof's convolutions into PyTorch's dispatcher, below autograd.

Every module, functional call and library on top of PyTorch then goes through them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bestof.accuracy import ACCURACIES, Accuracy
from bestof.configuration import Configuration
from bestof.errors import NoAlternative
from bestof.kernels import isa
from bestof.torch.backends.device import CPU, Device
from bestof.torch.backends.shim import ConvolutionShim, computed_by, make_shim
from bestof.torch.convolution.layer import ConvolutionLayer, Gradients
from bestof.torch.convolution.one_dimension import flattened, heightened, spread
from bestof.torch.convolution.originals import OPERATORS, Originals, originals
from bestof.torch.convolution.packed_weights import PackedWeightsCache
from bestof.torch.convolution.problem import LayerProblem
from bestof.torch.convolution.recognition import (
    Geometry,
    Mask,
    backward_of,
    is_bias,
    is_gradient,
    is_worth,
    look_of,
    problem_of,
)
from bestof.torch.convolution.shortcut import Met, Shortcut
from bestof.torch.convolution.transposed import TransposedConvolution
from bestof.torch.dispatch.kept_kernels import keep_kernel
from bestof.torch.dispatch.modes import are_modes_on, without_modes
from bestof.torch.dispatch.native_check import NativeChecks, agree
from bestof.torch.dispatch.volumes import VolumeConvolution
from bestof.torch.ops.guards import PLAIN

_Library: Any = torch.library.Library  # has no annotations


def _as_is(originals: Originals, key: str) -> Callable[..., Any]:
    """Return the convolution that the dispatcher would call next.

    If that is PyTorch's own on the CPU, return the function that it calls in turn: boxing arguments
    takes 2.7 microseconds more.
    """
    if key != "CPU" or torch._C._dispatch_has_kernel_for_dispatch_key("aten::convolution", key):
        return originals.convolution
    return _convolution_of_pytorch


def _convolution_of_pytorch(*arguments: Any) -> Any:
    convolution: Any = torch._convolution
    return convolution(*arguments, False, False, False, False)  # which are for CUDA


class ConvolutionOverride:
    """`aten::convolution` and `aten::convolution_backward` on one device, while registered.

    A call is recognized by its shapes, strides, dtypes and settings. One look-up in `layer` says
    how it is computed. PyTorch's own kernel computes three kinds of calls: those that are not 2-D
    convolutions of dense float32, float64 or bfloat16 tensors; those that PyTorch refuses; and all
    calls while deterministic algorithms or exact results are asked for. Two gradients that are
    computed apart differ in their last bits from those computed together.

    by_shim: whether calls whose kernel is decided are answered without Python, if that is possible
    (see `make_shim`). Raises TorchError if PyTorch cannot hand its own kernels out.
    """

    def __init__(self, device: Device = CPU, *, by_shim: bool = True) -> None:
        self.device = device
        self.packed = PackedWeightsCache(Configuration().packed_mib << 20)
        self.originals = replace(originals(device.key), packed=self.packed)
        self.layer = ConvolutionLayer(self.originals, device)
        self.transposed = TransposedConvolution(self.layer, device)
        self.volumes: VolumeConvolution | None = None
        """Answers 3-D convolutions; None if PyTorch does."""
        self._as_is = _as_is(self.originals, device.key)
        self._library: Any = None
        self._shim = None
        if by_shim and device is CPU:
            self._shim = make_shim(self._convolution, self._backward, self.layer.kept.entries)
        self._is_shim_in = False
        if self._shim is not None:
            self.layer.forget = self._shim.forget
            self.packed.shim = self._shim
        self._native_checks = NativeChecks("convolution")
        self._set_accuracy(Configuration().accuracy)

    def configure(self, configuration: Configuration) -> None:
        """Answer calls within this accuracy from now on, and limit the memory of packed weights."""
        self.packed.limit = configuration.packed_mib << 20
        if self.packed.size > self.packed.limit:
            self.packed.clear()
        if self._accuracy != configuration.accuracy:
            self._set_accuracy(configuration.accuracy)

    def _set_accuracy(self, accuracy: Accuracy) -> None:
        self._accuracy = accuracy
        if self._shim is not None:
            self._shim.set_level(ACCURACIES.index(accuracy))

    def register(self) -> None:
        """Put bestof's kernels in; nothing if they are in."""
        if self._library is not None or self._is_shim_in:
            return
        if self._shim is not None:
            self._shim.take_out()  # an interrupt may have come after `put_in`
            self._is_shim_in = self._shim.put_in()
        if not self._is_shim_in:
            self._put_in()
        for name in OPERATORS:
            keep_kernel(name, self.device.key)

    def _put_in(self) -> None:
        library = _Library("aten", "IMPL")
        try:
            library.impl("convolution", self._convolution, self.device.key, allow_override=True)
            library.impl(
                "convolution_backward", self._backward, self.device.key, allow_override=True
            )
        except BaseException:
            library._destroy()
            raise
        self._library = library

    def remove(self) -> None:
        """Put PyTorch's own kernels back; nothing if they are in."""
        # First what is known, then what is in: whatever an interrupt leaves in, the next call takes
        # out. A library that nobody holds leaves by itself.
        self._is_shim_in, library, self._library = False, self._library, None
        if self._shim is not None:
            self._shim.take_out()
        if library is not None:
            library._destroy()
        self.layer.kept.clear()
        self.packed.clear()

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
        if are_modes_on():
            return without_modes(
                self._convolution,
                *(input, weight, bias, stride, padding, dilation),
                *(transposed, output_padding, groups),
            )
        if transposed or len(stride) != 2:
            arguments = (input, weight, bias, stride, padding, dilation)
            found = None
            if is_worth(input, weight) and self.device is CPU:
                found = self._of_another_form(*arguments, transposed, output_padding, groups)
            if found is not None:
                return found
            return self._as_is(  # type: ignore[no-any-return]
                *arguments, transposed, output_padding, groups
            )
        geometry = (stride, padding, dilation, groups)
        found = self._ordinary(input, weight, bias, geometry, (input, weight))
        if found is not None:
            return found
        return self.originals.convolution(  # type: ignore[no-any-return]
            input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
        )

    def _of_another_form(
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
    ) -> Tensor | None:
        """Return the output of a convolution that is not 2-D, or is transposed; None if PyTorch
        answers."""
        given = input, weight
        is_line = len(stride) == 1
        if is_line:
            views = spread(input, weight, stride, padding, dilation, output_padding)
            if views is None:
                return None
            input, weight, stride, padding, dilation, output_padding = views
        geometry = (stride, padding, dilation, groups)
        if len(stride) == 3 and not transposed and self.volumes is not None:
            return self.volumes.forward(input, weight, bias, geometry)
        if len(stride) != 2:
            return None
        if transposed:
            output = self.transposed.forward(
                self._accuracy, input, weight, bias, geometry, output_padding
            )
        else:
            output = self._ordinary(input, weight, bias, geometry, given)
        return flattened(output) if is_line else output

    def _ordinary(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        given: tuple[Tensor, Tensor],
    ) -> Tensor | None:
        """Return the output of a 2-D convolution; None if PyTorch answers.

        given: input and weight as the program gave them. Views that are made below autograd do not
        tell whether they require gradients.
        """
        shim = self._shim_of(input, given)
        # Read the generation before the accuracy and the decisions. If either has changed when the
        # decision is noted, the shim ignores the note.
        generation = 0 if shim is None else shim.generation
        found = self._find_forward(input, weight, bias, geometry, given)
        if found is None:
            return None
        layer = self.layer
        if found.native is not None and shim is not None and shim.refused:
            return layer.forward_unseen(found, input, weight, bias)
        # The shim cannot see which operands want gradients. Nearly always both do; what else looks
        # so is answered right all the same, as PyTorch would.
        is_noted = (
            shim is not None
            and (not torch.is_grad_enabled() or all(_requires_grad(given)))
            and (found.chosen or self._may_answer(shim, found, input, weight, bias))
            and shim.note(generation, found.counts, found.native)
        )
        try:
            return (layer.ask_forward if is_noted else layer.forward)(found, input, weight, bias)
        except NoAlternative:  # memory is short, say: the program gets PyTorch's own error
            return None
        except BaseException:
            layer.catch_up()
            raise

    def _shim_of(self, input: Tensor, given: tuple[Tensor, Tensor]) -> ConvolutionShim | None:
        """Return the shim if it is in and asks for this call; None for views of a 1-D one."""
        return self._shim if self._is_shim_in and input is given[0] else None

    def _may_answer(
        self,
        shim: ConvolutionShim,
        found: Shortcut,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> bool:
        """Return whether a native kernel was chosen for calls like this one, and may answer them.

        A kernel that reads packed weights refuses until a call from Python has packed them.
        """
        native = found.native
        if native is None:
            return False
        problem, by_python = found.problem, found.by_python
        return self._native_checks.passes(
            (native, input.stride(), weight.stride(), isa()),
            found.name,
            problem,
            lambda: agree(
                lambda *operands: computed_by(shim, native, operands),
                lambda *operands: by_python(*operands, problem),  # type: ignore[misc]  # is there
                (input, weight, bias),
                _tolerance,
                # Packed weights are known by their address.
                fixed=() if native.packed is None else (native.packed,),
            ),
        )

    def _find_forward(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        given: tuple[Tensor, Tensor],
    ) -> Shortcut | None:
        """Return how a forward pass is computed; None if by PyTorch."""
        call = (self.device, self._accuracy, input, weight, bias is not None, geometry)
        look = look_of(*call)
        if look is None or not (bias is None or is_bias(self.device, bias, weight)):
            return None
        requires_grad = _requires_grad(given)
        is_trained = torch.is_grad_enabled() and any(requires_grad)

        def recognize() -> Met | None:
            problem = problem_of(*call)
            if problem is None or not is_trained:
                return problem
            return LayerProblem(problem, *requires_grad)

        wanted = requires_grad if is_trained else None
        return self.layer.find_forward((look, wanted), recognize)

    def _backward(self, *arguments: Any) -> Gradients:
        if are_modes_on():
            return without_modes(self._backward, *arguments)
        found = None
        if arguments[7] or len(arguments[4]) != 2:  # transposed, or not 2-D
            if self.device is CPU and is_worth(arguments[1], arguments[2]):
                found = self._backward_of_another_form(*arguments)
        else:
            grad_output, input, weight, bias_sizes, *geometry = arguments[:7]
            found = self._ordinary_backward(
                grad_output,
                input,
                weight,
                _has_bias(bias_sizes),
                (*geometry, arguments[9]),
                tuple(arguments[10]),
                (input, weight),
            )
        if found is not None:
            return found
        return self.originals.convolution_backward(*arguments)  # type: ignore[no-any-return]

    def _backward_of_another_form(
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
    ) -> Gradients | None:
        """Return the gradients of a convolution that is not 2-D, or is transposed; None if PyTorch
        answers."""
        given = input, weight
        is_line = len(stride) == 1
        if is_line:
            views = spread(input, weight, stride, padding, dilation, output_padding)
            if views is None or type(grad_output) not in PLAIN or grad_output.dim() != 3:
                return None
            input, weight, stride, padding, dilation, output_padding = views
            grad_output = heightened(grad_output)
        geometry = (stride, padding, dilation, groups)
        mask: Mask = tuple(output_mask)  # type: ignore[assignment]
        if len(stride) == 3 and not transposed and self.volumes is not None:
            return self.volumes.backward(grad_output, input, weight, geometry, mask)
        if len(stride) != 2:
            return None
        if transposed:
            found = self.transposed.backward(
                self._accuracy, grad_output, input, weight, geometry, output_padding, mask
            )
        else:
            found = self._ordinary_backward(
                grad_output, input, weight, _has_bias(bias_sizes), geometry, mask, given
            )
        if found is None or not is_line:
            return found
        return flattened(found[0]), flattened(found[1]), found[2]

    def _ordinary_backward(
        self,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        has_bias: bool,
        geometry: Geometry,
        mask: Mask,
        given: tuple[Tensor, Tensor],
    ) -> Gradients | None:
        """Return the gradients of a 2-D convolution; None if PyTorch answers.

        given: as in `_ordinary`.
        """
        shim = self._shim_of(input, given)
        generation = 0 if shim is None else shim.generation  # as in a forward pass
        if not is_gradient(self.device, grad_output, input):
            return None
        call = (self.device, self._accuracy, input, weight, has_bias, geometry)
        look = look_of(*call)
        if look is None:
            return None
        wanted = _requires_grad(given)
        found = self.layer.find_backward(
            (look, grad_output.shape, grad_output.stride(), *wanted, mask),
            lambda: backward_of(problem_of(*call), grad_output, wanted, mask),
        )
        if found is None:
            return None
        layer = self.layer
        is_noted = shim is not None and found.chosen and shim.note(generation, found.counts, None)
        try:
            return (layer.ask_backward if is_noted else layer.backward)(
                found, grad_output, input, weight, mask
            )
        except NoAlternative:  # as in a forward pass
            return None
        except BaseException:
            layer.catch_up()
            raise


def _has_bias(bias_sizes: Sequence[int] | None) -> bool:
    """Return whether a backward call names a bias; [0] stands for none."""
    return bias_sizes is not None and list(bias_sizes) != [0]


def _requires_grad(given: tuple[Tensor, Tensor]) -> tuple[bool, bool]:
    """Return whether input and weight require gradients. A subclass would see the question."""
    return given[0].requires_grad, given[1].requires_grad


def _tolerance(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return how far results of the same kernel may be apart: 1e-5 of the largest sum possible."""
    largest = weight.abs().sum(dim=(1, 2, 3)) * input.abs().max()
    if bias is not None:
        largest = largest + bias.abs()
    return 1e-5 * largest.reshape(1, -1, 1, 1)
