"""The forward pass of 2-D convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.configuration import Configuration
from bestof.torch.backends.device import CPU, Device
from bestof.torch.backends.shim import Shim
from bestof.torch.ops.combination import Combination, combined
from bestof.torch.ops.comparison import Scale, energies, root
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass, example, mean, one_image
from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.packed_weights import PackedWeightsCache
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.convolution.recognition import is_bias, look_of, problem_of
from bestof.torch.ops.operation import Call


class Conv2d(Conv2dPass):
    """`aten::convolution` of images. The operands are the input, the weight and the bias."""

    direction = "forward"
    operator = "aten::convolution"

    def __init__(self, device: Device = CPU, rows: Sequence[Pass] | None = None) -> None:
        super().__init__(device, rows)
        self.packed = PackedWeightsCache(Configuration().packed_mib << 20)

    def original(self, kernels: Sequence[Any]) -> PyTorchConv:
        """Return PyTorch's own kernels of both operators, with the packed weights."""
        return replace(super().original(kernels), packed=self.packed)

    def configure(self, configuration: Configuration) -> None:
        """Limit the memory of packed weights."""
        self.packed.limit = configuration.packed_mib << 20
        if self.packed.size > self.packed.limit:
            self.packed.clear()

    def lend_to(self, shim: Shim | None) -> None:
        """Lend packed weights to settled calls without Python from now on."""
        self.packed.shim = shim

    def clear(self) -> None:
        """Forget packed weights."""
        self.packed.clear()

    def call(
        self,
        level: Accuracy,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        _output_padding: Sequence[int],
        groups: int,
    ) -> Call | None:
        """Return the problem and the operands of a pass without gradients; None if PyTorch
        answers it."""
        geometry = (stride, padding, dilation, groups)
        call = (self.device, level, input, weight, bias is not None, geometry)
        if transposed or len(stride) != 2 or look_of(*call) is None:
            return None
        problem = problem_of(*call)
        if problem is None or not (bias is None or is_bias(self.device, bias, weight)):
            return None
        return Call(problem._replace(frozen=True), (input, weight, bias))

    def tolerance(
        self, _row: Pass, _problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Return how far results of the same kernel may be apart: 1e-5 of the largest sum."""
        largest = weight.abs().sum(dim=(1, 2, 3)) * input.abs().max()
        if bias is not None:
            largest = largest + bias.abs()
        return 1e-5 * largest.reshape(1, -1, 1, 1)

    def combination(self, args: tuple[Any, ...]) -> Combination | None:
        """Return the convolution of one combination of the images."""
        problem, input, weight, bias = args
        smaller = one_image(problem)
        numbers = self.numbers(smaller, len(input))
        if numbers is None:
            return None
        bias = None if bias is None else bias * float(numbers.sum())
        return Combination((smaller, combined(input, numbers), weight, bias), numbers)

    def scale(self, problem: ConvProblem, tensors: Sequence[Tensor | None]) -> Scale:
        """Return the scale of outputs.

        Each pair of a pixel and a tap meets in one output at most. So the sum of all squared terms
        is at most the sum over channels of (squares of the image) * (squares of the weights).
        """
        input, weight = tensors[:2]
        assert input is not None
        assert weight is not None
        g, (k, c, r, s) = problem.groups, problem.weight_shape
        pixels, squares = energies(input, (0, 2, 3)), energies(weight, (2, 3))
        taps = squares.reshape(g, k // g, c).sum(1).flatten()
        filters = squares.sum(1)
        patch = energies(input, (1,)).max() * (r * s)
        return Scale(mean(pixels * taps, problem.output_shape), root(filters.max() * patch))

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return a layer of ResNet34."""
        x, w, geometry = example()
        return {"2 x 64 x 28 x 28, 3x3": (x, w, torch.zeros(w.shape[0]), *geometry)}
