"""Compares results of convolution passes with PyTorch's own, within what each row promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bestof.torch.convolution import as_is, im2row, shared_im2row
from bestof.torch.convolution.alternative import DIRECT, Alternative, ErrorBound
from bestof.torch.convolution.catalogue import FORWARD, WEIGHT_GRADIENT, Catalogue
from bestof.torch.convolution.originals import Originals
from bestof.torch.convolution.other_dtype import has_bfloat16
from bestof.torch.convolution.problem import ConvProblem
from bestof.torch.ops.comparison import (
    SUMS_IN_BFLOAT16,
    Finding,
    Scale,
    Side,
    compare,
    energies,
    root,
)
from bestof.torch.rows.row_verifier import RowVerifier

# Products of TF32 have operands of 11 bits: the error of one rounding, for both operands.
_TF32 = ErrorBound(rms=2**-10, maximum=10 * 2**-10)


class PassVerifier(RowVerifier):
    """Compares the results of one pass; a call is (problem, *tensors).

    The scale of errors comes from sums of squares of the operands: they bound the magnitudes of all
    terms, and take two passes over the operands.
    """

    def __init__(self, catalogue: Catalogue, originals: Originals) -> None:
        super().__init__(catalogue.alternatives[0].name)
        self._catalogue = catalogue
        self._originals = originals
        self._rows = {row.name: row for row in catalogue.alternatives}

    def run(self, alternative: str, _stage: int, args: tuple[Any, ...]) -> Tensor:
        """Return what a row computes."""
        problem, *tensors = args
        return self._rows[alternative].function(self._originals, *tensors, problem)

    def compare(
        self,
        alternative: str,
        _stage: int,
        args: tuple[Any, ...],
        expected: Tensor,
        got: Tensor,
    ) -> Finding:
        """Return which result is wrong."""
        return self.compare_row(self._rows[alternative], args, expected, got)

    def compare_row(
        self, row: Alternative, args: tuple[Any, ...], expected: Tensor, got: Tensor
    ) -> Finding:
        """Return which result is wrong; the row need not be one of the catalogue."""
        problem, *tensors = args
        first = self._rows[self._first]
        return compare(
            self._side(got, row, problem),
            self._side(expected, first, problem),
            _SCALES[self._catalogue.direction](problem, tensors),
            partial(_in_float64, first.function, self._originals, problem, tensors),
        )

    def _side(self, result: Tensor, row: Alternative, problem: ConvProblem) -> Side:
        """Return a result with the error of its sums, which are taken in float32 or wider."""
        if problem.dtype == "bfloat16":
            bound = self._catalogue.bound(row, problem._replace(dtype="float32"))
            if row.bound is None and not has_bfloat16():
                return Side(result, bound, SUMS_IN_BFLOAT16)
            return Side(result, bound)
        bound = self._catalogue.bound(row, problem)
        if "tf32" in problem.device:
            bound = ErrorBound(bound.rms + _TF32.rms, bound.maximum + _TF32.maximum)
        return Side(result, bound)


class LayerVerifier(RowVerifier):
    """Compares the results of im2row with a kept matrix, for whole layers.

    The other ways to compute a layer call PyTorch's own kernels, or the selectors of the passes,
    which compare. A call is (layer, input, weight, bias) for the forward pass, and (layer,
    grad_output, input, weight, layout of the gradient, mask) for the backward pass. Of the
    gradients, that of the weight is compared: the selector of input gradients compares the other
    one, and the gradient of the bias is PyTorch's.
    """

    def __init__(self, name: str, originals: Originals) -> None:
        super().__init__("")
        self._name = name
        self._originals = originals
        self._passes = PassVerifier(FORWARD, originals), PassVerifier(WEIGHT_GRADIENT, originals)
        self._row = Alternative(name, as_is.forward, shared_im2row.supports, DIRECT)

    def trusts(self, alternative: str) -> bool:
        """Return whether a way has no kernel of its own."""
        return alternative != self._name

    def run(self, alternative: str, stage: int, args: tuple[Any, ...]) -> Any:
        """Return the output or the gradients, by PyTorch's own kernel or without a kept matrix."""
        layer, *tensors = args
        problem = layer.convolution
        if stage == 0:
            input, weight, bias = tensors
            if alternative == self._name:
                return shared_im2row.forward(input, weight, bias, problem)[0]
            return as_is.forward(self._originals, input, weight, bias, problem)
        grad_output, input, weight, layout, mask = tensors
        problem = problem._replace(bias=False, grad_layout=layout)
        found = as_is.gradients(self._originals, grad_output, input, weight, problem, mask)
        if alternative != self._name or not mask[1]:
            return found
        return (
            found[0],
            im2row.weight_gradient(self._originals, grad_output, input, problem),
            found[2],
        )

    def operands(self, stage: int, args: tuple[Any, ...]) -> Sequence[Tensor | None]:
        """Return the tensors of a call."""
        return args[1:] if stage == 0 else args[1:4]

    def replaced(
        self, stage: int, args: tuple[Any, ...], operands: Sequence[Tensor | None]
    ) -> tuple[Any, ...]:
        """Return the call with other tensors."""
        return (args[0], *operands, *(args[4:] if stage else ()))

    def compare(
        self, _alternative: str, stage: int, args: tuple[Any, ...], expected: Any, got: Any
    ) -> Finding:
        """Return which output, or which gradient of the weight, is wrong."""
        problem = args[0].convolution
        if stage == 0:
            return self._passes[0].compare_row(self._row, (problem, *args[1:]), expected, got)
        grad_output, input, _, layout, mask = args[1:]
        if not mask[1]:
            return Finding()
        problem = problem._replace(bias=False, grad_layout=layout)
        call = (problem, grad_output, input)
        return self._passes[1].compare_row(self._row, call, expected[1], got[1])


def _in_float64(
    function: Callable[..., Tensor],
    originals: Originals,
    problem: ConvProblem,
    tensors: Sequence[Tensor | None],
) -> Tensor:
    wide = [None if one is None else one.double() for one in tensors]
    return function(originals, *wide, problem._replace(dtype="float64"))


def _forward_scale(problem: ConvProblem, tensors: Sequence[Tensor | None]) -> Scale:
    """Return the scale of outputs.

    Each pair of a pixel and a tap meets in one output at most. So the sum of all squared terms is
    at most the sum over channels of (squares of the image) * (squares of the weights).
    """
    input, weight = tensors[:2]
    assert input is not None
    assert weight is not None
    g, (k, c, r, s) = problem.groups, problem.weight_shape
    pixels = energies(input, (0, 2, 3))
    taps = energies(weight, (2, 3)).reshape(g, k // g, c).sum(1).flatten()
    filters = energies(weight, (1, 2, 3))
    patch = energies(input, (1,)).max() * (r * s)
    return Scale(_mean(pixels * taps, problem.output_shape), root(filters.max() * patch))


def _input_gradient_scale(problem: ConvProblem, tensors: Sequence[Tensor | None]) -> Scale:
    """Return the scale of gradients of the input, as that of outputs."""
    gradient, weight = tensors[:2]
    assert gradient is not None
    assert weight is not None
    g, (k, c, r, s) = problem.groups, problem.weight_shape
    filters = energies(weight, (1, 2, 3))
    channels = energies(weight, (2, 3)).reshape(g, k // g, c).sum(1)
    patch = energies(gradient, (1,)).max() * (r * s)
    terms = energies(gradient, (0, 2, 3)) * filters
    return Scale(_mean(terms, problem.input_shape), root(channels.max() * patch))


def _weight_gradient_scale(problem: ConvProblem, tensors: Sequence[Tensor | None]) -> Scale:
    """Return the scale of gradients of the weight: exact sums of squared terms, tap by tap."""
    gradient, input = tensors[:2]
    assert gradient is not None
    assert input is not None
    g, (p, q) = problem.groups, gradient.shape[2:]
    (_, _, r, s), (top, left) = problem.weight_shape, problem.padding
    squares = energies(_grouped(gradient, g), (2,))
    image = energies(_grouped(input, g), (2,))
    image = torch.nn.functional.pad(image, (left, left, top, top))
    (down, across), (high, wide) = problem.stride, problem.dilation
    total = sum(
        float((squares * image[..., y : y + p * down : down, x : x + q * across : across]).sum())
        for y in range(0, r * high, high)
        for x in range(0, s * wide, wide)
    )
    largest = energies(gradient, (0, 2, 3)).max() * energies(input, (0, 2, 3)).max()
    count = 1
    for extent in problem.weight_shape:
        count *= extent
    return Scale(root(total / count), root(largest))


def _grouped(images: Tensor, groups: int) -> Tensor:
    n, c, h, w = images.shape
    return images.reshape(n, groups, c // groups, h, w)


def _mean(terms: Tensor, shape: Sequence[int]) -> float:
    count = 1
    for extent in shape:
        count *= extent
    return root(terms.sum() / count)


_SCALES: dict[str, Callable[[ConvProblem, Sequence[Tensor | None]], Scale]] = {
    "forward": _forward_scale,
    "input gradient": _input_gradient_scale,
    "weight gradient": _weight_gradient_scale,
}
