"""Compares results of im2row with a kept matrix with PyTorch's own, for whole layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from bestof.torch.ops.comparison import Finding
from bestof.torch.ops.convolution import as_is, im2row, shared_im2row
from bestof.torch.ops.convolution.passes import FORWARD, WEIGHT_GRADIENT
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.row import Row
from bestof.torch.rows.row_verifier import RowVerifier


class LayerVerifier(RowVerifier):
    """Compares the results of im2row with a kept matrix, for whole layers.

    The other ways to compute a layer call PyTorch's own kernels, or the selectors of the passes,
    which compare. A call is (layer, input, weight, bias) for the forward pass, and (layer,
    grad_output, input, weight, layout of the gradient, mask) for the backward pass. Of the
    gradients, that of the weight is compared: the selector of input gradients compares the other
    one, and the gradient of the bias is PyTorch's.
    """

    def __init__(self, name: str, originals: PyTorchConv) -> None:
        super().__init__("")
        self._name = name
        self._originals = originals
        self._row: Row[Any] = Row(name, as_is.forward)  # PyTorch's matrix products do the sums

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
            return as_is.forward(self._originals, problem, input, weight, bias)
        grad_output, input, weight, layout, mask = tensors
        problem = problem._replace(bias=False, grad_layout=layout)
        found = as_is.gradients(self._originals, problem, grad_output, input, weight, mask)
        if alternative != self._name or not mask[1]:
            return found
        return (
            found[0],
            im2row.weight_gradient(self._originals, problem, grad_output, input),
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
            call = (problem, *args[1:])
            return FORWARD.compare(self._row, self._originals, call, expected, got)
        grad_output, input, _, layout, mask = args[1:]
        if not mask[1]:
            return Finding()
        call = (problem._replace(bias=False, grad_layout=layout), grad_output, input)
        return WEIGHT_GRADIENT.compare(self._row, self._originals, call, expected[1], got[1])
