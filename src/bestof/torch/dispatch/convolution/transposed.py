"""Transposed convolutions, by the selectors of the passes of ordinary ones.

A transposed convolution is the input gradient of an ordinary convolution, from the output of that
one to its image. So its passes are those of the ordinary convolution, and share their evidence:

    transposed            ordinary, whose image is the result of the transposed one
    forward               input gradient
    input gradient        forward
    weight gradient       weight gradient, with input and gradient exchanged
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.errors import NoAlternative
from bestof.torch.backends.device import Device
from bestof.torch.dispatch.convolution.layer import ConvolutionLayer, Gradients, Mask
from bestof.torch.dispatch.convolution.shortcut import Note, Shortcut
from bestof.torch.ops.convolution.channels_last import is_right_as_is
from bestof.torch.ops.convolution.direction import Direction
from bestof.torch.ops.convolution.problem import ConvProblem, image_size
from bestof.torch.ops.convolution.recognition import (
    LARGEST,
    Geometry,
    are_usual,
    is_gradient,
    look_of,
)
from bestof.torch.ops.dtypes import is_rounded, name_of
from bestof.torch.ops.memory_format import Layout, layout_of, torch_format


class TransposedConvolution:
    """The 2-D transposed convolutions of one device.

    Both functions return None for what PyTorch's own kernel answers: calls that are not recognized,
    and those for which it was chosen, which are noted. It adds the bias as it goes, and computes
    both gradients in one call.
    """

    def __init__(self, layer: ConvolutionLayer, device: Device) -> None:
        self._layer = layer
        self._device = device

    def forward(
        self,
        note: Note,
        accuracy: Accuracy,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        output_padding: Sequence[int],
    ) -> Tensor | None:
        """Return the output (N, C, H, W) of an input (N, K, P, Q) and a weight (K, C/g, R, S)."""
        look = look_of(self._device, accuracy, input, weight, bias is not None, geometry)
        if look is None or not (bias is None or self._is_bias(bias, weight, geometry[3])):
            return None
        if bias is not None and is_rounded(name_of(input.dtype)):
            return None  # the bias would be added to rounded numbers

        def recognize() -> ConvProblem | None:
            problem = self._problem(accuracy, input, weight, geometry, output_padding)
            if problem is None:
                return None
            return _served(problem._replace(grad_layout=layout_of(input)), "input gradient")

        key = look, tuple(output_padding)
        found = self._layer.find_alone("input gradient", key, recognize)
        if found is None:
            return None
        if found.chosen:
            note(found.counts)
        if _is_pytorchs_turn(found):
            return None
        try:
            output: Tensor = self._layer.input_gradient(found.problem, input, weight)
        except NoAlternative:  # for example, memory is short; the program gets PyTorch's own error
            return None
        except BaseException:
            self._layer.catch_up()
            raise
        return output if bias is None else output.add_(bias.view(-1, 1, 1))

    def backward(
        self,
        note: Note,
        accuracy: Accuracy,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        geometry: Geometry,
        output_padding: Sequence[int],
        mask: Mask,
    ) -> Gradients | None:
        """Return the gradients of input, weight and bias that the mask asks for."""
        if not is_gradient(self._device, grad_output, input):
            return None
        look = look_of(self._device, accuracy, input, weight, False, geometry)
        if look is None:
            return None
        # PyTorch's own kernel converts the gradient too. Its format decides on that of results.
        last = torch_format(_format(input, weight) == "channels_last")

        def recognize(direction: Direction) -> ConvProblem | None:
            problem = self._problem(accuracy, input, weight, geometry, output_padding)
            if problem is None or grad_output.shape != problem.input_shape:
                return None
            if layout_of(grad_output.contiguous(memory_format=last)) != problem.input_layout:
                return None
            if direction == "weight gradient":
                problem = problem._replace(grad_layout=layout_of(input))
            return _served(problem, direction)

        key = look, grad_output.shape, grad_output.stride(), tuple(output_padding)
        find = self._layer.find_alone
        of_input = of_weight = None
        if mask[0]:
            of_input = find("forward", key, lambda: recognize("forward"))
        if mask[1]:
            of_weight = find("weight gradient", key, lambda: recognize("weight gradient"))
        found = [one for one in (of_input, of_weight) if one is not None]
        if len(found) < sum(mask[:2]):
            return None
        if all(one.chosen for one in found):
            note([count for one in found for count in one.counts])
        turns = [_is_pytorchs_turn(one) for one in found]
        if all(turns):
            return None
        gradient = grad_output.contiguous(memory_format=last)
        grad_input = grad_weight = None
        try:
            if of_weight is not None:
                grad_weight = self._layer.weight_gradient(of_weight.problem, input, gradient)
            if of_input is not None:
                grad_input = self._layer.forward_pass(of_input.problem, gradient, weight, None)
        except NoAlternative:
            return None
        except BaseException:
            self._layer.catch_up()
            raise
        return grad_input, grad_weight, grad_output.sum((0, 2, 3)) if mask[2] else None

    def _is_bias(self, bias: Tensor, weight: Tensor, groups: int) -> bool:
        return (
            type(bias) in (Tensor, torch.nn.Parameter)
            and bias.dtype is weight.dtype
            and self._device.holds(bias)
            and weight.dim() == 4
            and tuple(bias.shape) == (weight.shape[1] * groups,)
        )

    def _problem(
        self,
        accuracy: Accuracy,
        input: Tensor,
        weight: Tensor,
        geometry: Geometry,
        output_padding: Sequence[int],
    ) -> ConvProblem | None:
        """Return the ordinary convolution, from the image that results to `input`.

        None if there is none: for example, output_padding may be so large that the convolution of
        the image would be larger than `input`.
        """
        stride, padding, dilation, groups = geometry
        if (
            not are_usual(input.shape, weight.shape, geometry)
            or input.shape[1] != weight.shape[0]
            or weight.shape[0] % groups != 0
            or len(output_padding) != 2
            or min(output_padding) < 0
        ):
            return None
        axes = stride, padding, dilation, output_padding
        size = image_size(input.shape[2:], weight.shape[2:], *axes)
        if min(size) < 1:
            return None
        problem = ConvProblem.of(input, weight, False, stride, padding, dilation, groups)
        problem = problem._replace(
            input_shape=(input.shape[0], weight.shape[1] * groups, *size),
            input_layout=_format(input, weight),
            device=self._device.name(input),
            accuracy=accuracy,
        )
        if problem.output_shape != tuple(input.shape) or problem.largest_image > LARGEST:
            return None
        return problem


def _format(input: Tensor, weight: Tensor) -> Layout:
    """Return the format of the output, as PyTorch chooses it."""
    is_last = "channels_last" in (layout_of(input), layout_of(weight))
    return "channels_last" if is_last else "channels_first"


def _served(problem: ConvProblem, direction: Direction) -> ConvProblem | None:
    """Return the problem, unless PyTorch's ordinary kernel is not known to be right: its transposed
    one may take other code."""
    return problem if is_right_as_is(problem, direction) else None


def _is_pytorchs_turn(found: Shortcut) -> bool:
    """Count a call, and return whether PyTorch's own kernel was chosen and answers this one."""
    next(found.counts[0])
    return next(found.turns)
