"""Answers convolutions and their gradients, below autograd.

Every module, functional call and library on top of PyTorch then goes through here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor

from bestof.configuration import Configuration
from bestof.errors import NoAlternative
from bestof.selection import BestOf
from bestof.torch.backends.device import CPU, Device
from bestof.torch.backends.shim import OperatorShim
from bestof.torch.dispatch.convolution.layer import ConvolutionLayer, Gradients
from bestof.torch.dispatch.convolution.sharing import sharing
from bestof.torch.dispatch.convolution.shortcut import Met, Note, Shortcut
from bestof.torch.dispatch.convolution.transposed import TransposedConvolution
from bestof.torch.dispatch.convolution.volumes import VolumeConvolution
from bestof.torch.dispatch.kept_kernels import keep_kernel
from bestof.torch.dispatch.modes import are_modes_on, without_modes
from bestof.torch.dispatch.override import Override
from bestof.torch.dispatch.python_kernel import PythonKernel
from bestof.torch.dispatch.registration import make_operators
from bestof.torch.dispatch.replacement import Replacement
from bestof.torch.ops.convolution import recognition
from bestof.torch.ops.convolution.one_dimension import flattened, heightened, spread
from bestof.torch.ops.convolution.passes import passes_on
from bestof.torch.ops.convolution.problem import LayerProblem
from bestof.torch.ops.convolution.pytorch_conv import OPERATORS, PyTorchConv
from bestof.torch.ops.convolution.recognition import (
    Geometry,
    Mask,
    backward_of,
    is_bias,
    is_gradient,
    is_worth,
    look_of,
    problem_of,
)
from bestof.torch.ops.guards import PLAIN
from bestof.torch.ops.pytorch_kernel import kernels_of


def _as_is(originals: PyTorchConv, key: str) -> Callable[..., Any]:
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


class ConvolutionOverride(Replacement):
    """`aten::convolution` and `aten::convolution_backward` on one device, while registered.

    Unlike `Override`, it answers two operators by several operations, those of the passes. The
    three passes of a 2-D layer are chosen together: a call is recognized by its shapes, strides,
    dtypes and settings, and one look-up in `layer` says how it is computed. 1-D convolutions are
    2-D ones of images of height 1, transposed ones exchange the passes, and 3-D ones have
    operations of their own.

    PyTorch's own kernel computes what the operations do not choose for, and all calls while
    deterministic algorithms or exact results are asked for. Two gradients that are computed apart
    differ in their last bits from those computed together. If a pass is out, layers in training
    are PyTorch's.
    """

    operators = OPERATORS
    rule = "convolution"

    def __init__(
        self,
        device: Device = CPU,
        parts: Sequence[Override] | None = None,
        *,
        by_shim: bool = True,
    ) -> None:
        """parts: the overrides of the three passes, then, on the CPU, of those of 3-D convolutions;
        new ones of the three passes by default.

        by_shim: whether calls whose kernel is decided are answered without Python, if that is
        possible (see `make_operators`).
        Raises TorchError if PyTorch cannot hand its own kernels out.
        """
        self.parts = tuple(map(Override, passes_on(device)) if parts is None else parts)
        self.device = device
        forward, input_gradient, weight_gradient, *volumes = self.parts
        self.layer = ConvolutionLayer((forward, input_gradient, weight_gradient))
        self.originals: PyTorchConv = forward.original
        self.transposed = TransposedConvolution(self.layer, device)
        self.volumes = VolumeConvolution(volumes) if volumes else None
        self._as_is = _as_is(self.originals, device.key)
        shim = None
        if by_shim:
            self.least = recognition.LEAST_PRODUCTS if device is CPU else inf
            kernels = kernels_of(OPERATORS, device.key)
            shim = make_operators(self, self._answer, kernels, self.layer.kept.entries)
        functions: tuple[Callable[..., Any], ...] = (self._convolution, self._backward)
        super().__init__(
            OPERATORS,
            shim,
            [
                PythonKernel(name, function, device.key)
                for name, function in zip(OPERATORS, functions, strict=True)
            ],
            device.key,
        )
        forward.operation.lend_to(shim)
        if shim is not None:
            self.layer.forget = shim.forget

    @property
    def selector(self) -> BestOf:
        """The selector of whole layers."""
        return self.layer.layer

    def sharing(self) -> tuple[float, float]:
        """Return the seconds that choosing for layers cost, and those that it saved, beyond what
        choosing for the passes did."""
        return sharing(self.layer)

    def configure(self, configuration: Configuration) -> None:
        """Configure the parts; put the kernels in if any of them is in, or else take them out."""
        for one in self.parts:
            one.configure(configuration)
        self.selector.budget = configuration.budget
        self.layer.choose_passes()
        if self.level != configuration.accuracy:
            self.set_level(configuration.accuracy)
        is_wanted = any(one.is_registered for one in self.parts)
        if self.device is not CPU and not configuration.cuda:
            is_wanted = False
        (self._put_in if is_wanted else self.remove)()

    def register(self) -> None:
        """Put all parts in. Does nothing if they are in."""
        for one in self.parts:
            one.register()
        self.layer.choose_passes()
        self._put_in()

    def _put_in(self) -> None:
        was_in = self._is_in
        super().register()
        if self.is_shim_in and not was_in:
            for name in OPERATORS:
                keep_kernel(name, self.device.key)

    def remove(self) -> None:
        """Put PyTorch's own kernels back; nothing if they are in."""
        super().remove()
        self.layer.kept.clear()
        for one in self.parts:
            one.remove()

    def _answer(self, place: int, *arguments: Any) -> Any:
        """Return the results of the operator at this place."""
        return (self._convolution, self._backward)[place](*arguments)

    def _noting(self) -> Note:
        """Return the function that leaves calls like the present one to PyTorch's own kernel, and
        has them raise these counters.

        Ask for this before the decisions. If one changes before the note, the shim ignores it.
        """
        shim = self.shim if self.is_shim_in else None
        if shim is None:
            return lambda _counts: False
        generation = shim.generation
        return lambda counts: shim.note(generation, counts, None)

    def _convolution(self, *arguments: Any) -> Any:
        if are_modes_on():
            return without_modes(self._convolution, *arguments)
        input, weight, bias, stride, padding, dilation, transposed, _, groups = arguments
        found = None
        if transposed or len(stride) != 2:
            if is_worth(input, weight) and self.device is CPU:
                found = self._of_another_form(*arguments)
            return self._as_is(*arguments) if found is None else found
        geometry = (stride, padding, dilation, groups)
        found = self._ordinary(input, weight, bias, geometry, (input, weight))
        return self.originals.convolution(*arguments) if found is None else found

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
            return self.volumes.forward(self._noting(), input, weight, bias, geometry)
        if len(stride) != 2:
            return None
        if transposed:
            note = self._noting()
            output = self.transposed.forward(
                note, self.level, input, weight, bias, geometry, output_padding
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
        shim = self.shim if self.is_shim_in else None
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
            and (
                self._is_left_to_pytorch(found)
                or self._may_answer(shim, found, given, input, weight, bias)
            )
            and shim.note(generation, found.counts, found.native)
        )
        try:
            return (layer.ask_forward if is_noted else layer.forward)(found, input, weight, bias)
        except NoAlternative:  # memory is short, say: the program gets PyTorch's own error
            return None
        except BaseException:
            layer.catch_up()
            raise

    def _is_left_to_pytorch(self, found: Shortcut) -> bool:
        """Return whether PyTorch's own kernel answers most calls that look alike.

        It does where it was chosen. On a GPU it also does while anything is undecided: a call by
        Python takes 20 us in a forward pass and 200 in a backward one (by an H200), which no kernel
        hides where the program is as fast as it can launch kernels. One call in ASKED_EVERY is
        asked about, and may be a trial.
        """
        return found.chosen or (found.is_open and self.device is not CPU)

    def _may_answer(
        self,
        shim: OperatorShim,
        found: Shortcut,
        given: tuple[Tensor, Tensor],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> bool:
        """Return whether a native kernel was chosen for a call, and may answer those like it.

        Kernels in C++ read images, not what they are views of.
        """
        native, row = found.native, found.row
        if native is None or row is None or input is not given[0]:
            return False
        operands = input, weight, bias
        return self.layer.parts[0].passes(shim, row, native, found.problem, operands)

    def _find_forward(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        given: tuple[Tensor, Tensor],
    ) -> Shortcut | None:
        """Return how a forward pass is computed; None if by PyTorch."""
        call = (self.device, self.level, input, weight, bias is not None, geometry)
        look = look_of(*call)
        if look is None or not (bias is None or is_bias(self.device, bias, weight)):
            return None
        requires_grad = _requires_grad(given)
        is_trained = torch.is_grad_enabled() and any(requires_grad)

        def recognize() -> Met | None:
            problem = problem_of(*call)
            if problem is None or not is_trained:
                return problem if self.layer.is_chosen[0] else None
            return LayerProblem(problem, *requires_grad) if self.layer.is_whole else None

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
            return self.volumes.backward(self._noting(), grad_output, input, weight, geometry, mask)
        if len(stride) != 2:
            return None
        if transposed:
            note, level = self._noting(), self.level
            found = self.transposed.backward(
                note, level, grad_output, input, weight, geometry, output_padding, mask
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
        note = self._noting()
        if not is_gradient(self.device, grad_output, input):
            return None
        call = (self.device, self.level, input, weight, has_bias, geometry)
        look = look_of(*call)
        if look is None:
            return None
        wanted = _requires_grad(given)
        found = self.layer.find_backward(
            (look, grad_output.shape, grad_output.stride(), *wanted, mask),
            lambda: (
                backward_of(problem_of(*call), grad_output, wanted, mask)
                if self.layer.is_whole
                else None
            ),
        )
        if found is None:
            return None
        layer = self.layer
        is_noted = self._is_left_to_pytorch(found) and note(found.counts)
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
