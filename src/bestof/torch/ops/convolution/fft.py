"""Convolution as a product of spectra: one complex matrix product of channels for each frequency.

Mathieu, Henaff, LeCun: Fast Training of Convolutional Networks through FFTs, 2014. On each axis, a
circular transform of L elements is large enough under two conditions. L >= H + padding: elements
that wrap around then meet zeros, or are cropped. And L must hold the dilated kernel and the output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from bestof.torch.ops.bound import SPECTRAL
from bestof.torch.ops.convolution import as_is
from bestof.torch.ops.convolution.direction import EVERYWHERE, Direction, Pass, Passes
from bestof.torch.ops.convolution.estimate import SMALL, touched
from bestof.torch.ops.convolution.lowered import scratch_limit
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.promise import promise
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv
from bestof.torch.ops.convolution.weight_format import in_weight_format
from bestof.torch.ops.dtypes import WIDE
from bestof.torch.ops.memory_format import in_format
from bestof.torch.ops.row import Row

# The cost of an element of a spectrum: 17 ns. 27 to 60 were measured.
_ELEMENT = 3500.0
_FAR = 2.0**12  # single pixels vary more than the blocks of native/conv/outliers.cpp


@lru_cache(maxsize=1024)
def good_size(least: int) -> int:
    """Return the smallest even number from `least` on without a prime factor above 5.

    FFTs of such sizes are fast, and an even one halves a real axis.
    """
    best: int = 2 ** max(1, (least - 1).bit_length())
    fives = 1
    while 2 * fives <= best:
        odd = fives
        while 2 * odd <= best:
            twos: int = 2 ** max(1, (-(-least // odd) - 1).bit_length())
            best = min(best, odd * twos)
            odd *= 3
        fives *= 5
    return best


def transform_size(problem: ConvProblem) -> tuple[int, int]:
    """Return height and width of the transforms."""
    (_, _, h, w), (_, _, r, s), (p, q) = (
        problem.input_shape,
        problem.weight_shape,
        problem.output_size,
    )
    return (
        good_size(max(h + problem.padding[0], problem.dilation[0] * (r - 1) + 1, p)),
        good_size(max(w + problem.padding[1], problem.dilation[1] * (s - 1) + 1, q)),
    )


def spectra_elements(problem: ConvProblem) -> int:
    """Return how many complex numbers the three spectra have."""
    (n, c, _, _), (k, cg, _, _), (height, width) = (
        problem.input_shape,
        problem.weight_shape,
        transform_size(problem),
    )
    return (n * c + n * k + k * cg) * height * (width // 2 + 1)


def supports(problem: ConvProblem) -> bool:
    """Return whether the stride is 1, and an FFT may win.

    With other strides, most of the work would be wasted.

    An element of a spectrum costs 8 to 31 ns on 2 cores of a Zen 4. PyTorch's kernels without
    groups compute 400 FLOPs in 2 ns. Beyond this ratio, a single trial would take many times the
    whole call (42 times for 3x3 kernels on 112x112).
    """
    if problem.device and problem.accuracy != "relaxed":
        return False  # looking at the operands would wait for the device
    if problem.empty or problem.stride != (1, 1) or problem.weight_shape[2:] == (1, 1):
        return False
    elements = spectra_elements(problem)
    if problem.groups == 1 and 400 * elements > problem.flops and problem.flops > SMALL:
        return False
    return spectra_bytes(problem) <= scratch_limit(problem)


def spectra_bytes(problem: ConvProblem) -> int:
    """Return the bytes of the spectra. Each exists twice: as transformed, and as multiplied."""
    return 2 * spectra_elements(problem) * (16 if problem.dtype == "float64" else 8)


def estimate(problem: ConvProblem) -> float:
    """Return the estimate: the transforms. The products of spectra are small in comparison."""
    return _ELEMENT * spectra_elements(problem) + touched(problem)


def _spectrum(image: Tensor, groups: int, problem: ConvProblem) -> Tensor:
    """Return the spectrum of (A, g B, h, w) as (frequencies g, A, B)."""
    spectrum: Tensor = torch.fft.rfft2(image, s=transform_size(problem))
    rows, columns, height, width = spectrum.shape
    ordered = spectrum.reshape(rows, groups, columns // groups, height, width).permute(
        3, 4, 1, 0, 2
    )
    return ordered.reshape(height * width * groups, rows, columns // groups)


def _weight_spectrum(weight: Tensor, problem: ConvProblem) -> Tensor:
    """Return the spectrum of the weights, dilated by zeros, as (frequencies g, K/g, C/g)."""
    g, (k, c, r, s), (step_h, step_w) = problem.groups, problem.weight_shape, problem.dilation
    if (step_h, step_w) != (1, 1):
        dilated = weight.new_zeros(k, c, step_h * (r - 1) + 1, step_w * (s - 1) + 1)
        dilated[:, :, ::step_h, ::step_w] = weight
        weight = dilated
    by_group = weight.reshape(g, k // g, c, *weight.shape[2:]).transpose(0, 1).flatten(1, 2)
    return _spectrum(by_group, g, problem)


def _image(products: Tensor, groups: int, problem: ConvProblem) -> Tensor:
    """Return the inverse transform of (frequencies g, A, B) as (A, g B, L, L)."""
    height, width = transform_size(problem)
    rows, columns = products.shape[1:]
    ordered = products.reshape(height, width // 2 + 1, groups, rows, columns).permute(3, 2, 4, 0, 1)
    image: Tensor = torch.fft.irfft2(
        ordered.reshape(rows, groups * columns, height, -1), s=(height, width)
    )
    return image


def _stands_out(images: Tensor) -> bool:
    """Return whether an element stands out: its rounding would reach all results of its image.

    It does if it is not finite, or if the sum of squares of a pixel is more than _FAR times the
    geometric mean over the pixels that are not zero. If fewer than one pixel in eight is not zero,
    these do.
    """
    if images.is_cuda:
        return False
    energies = images.detach().square().sum(1).double()
    filled = energies[energies > 0]
    if not filled.numel():
        return not bool((energies == 0).all())
    return bool(
        ~torch.isfinite(energies).all()
        | (8 * filled.numel() < energies.numel())
        | (filled.max() > _FAR * filled.log().mean().exp())
    )


def forward(
    originals: PyTorchConv, problem: ConvProblem, input: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Return the output (N, K, P, Q)."""
    if _stands_out(input):
        originals.refused.count(problem)
        return as_is.forward(originals, problem, input, weight, bias)
    p, q = problem.output_size
    kernel = _weight_spectrum(weight, problem).transpose(1, 2).conj_physical()
    output = _image(
        torch.bmm(_spectrum(input, problem.groups, problem), kernel), problem.groups, problem
    )
    output = output.roll(problem.padding, (2, 3))[:, :, :p, :q]
    if bias is not None:
        output += bias.reshape(-1, 1, 1)
    return in_format(output, problem.channels_last)


def input_gradient(
    originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, weight: Tensor
) -> Tensor:
    """Return the gradient of the input (N, C, H, W)."""
    if _stands_out(grad_output):
        originals.refused.count(problem)
        return as_is.input_gradient(originals, problem, grad_output, weight)
    _, _, h, w = problem.input_shape
    top, left = problem.padding
    kernel = _weight_spectrum(weight, problem)
    image = _image(
        torch.bmm(_spectrum(grad_output, problem.groups, problem), kernel), problem.groups, problem
    )
    return in_format(image[:, :, top : top + h, left : left + w], problem.channels_last)


def weight_gradient(
    originals: PyTorchConv, problem: ConvProblem, grad_output: Tensor, input: Tensor
) -> Tensor:
    """Return the gradient of the weight (K, C/g, R, S)."""
    if _stands_out(grad_output) or _stands_out(input):
        originals.refused.count(problem)
        return as_is.weight_gradient(originals, problem, grad_output, input)
    g, (k, c, r, s), (step_h, step_w) = problem.groups, problem.weight_shape, problem.dilation
    outer = _spectrum(grad_output, g, problem).transpose(1, 2).conj_physical()
    taps = _image(torch.bmm(outer, _spectrum(input, g, problem)), g, problem).roll(
        problem.padding, (2, 3)
    )
    taps = taps[:, :, : step_h * (r - 1) + 1 : step_h, : step_w * (s - 1) + 1 : step_w]
    gradient = taps.reshape(k // g, g, c, r, s).transpose(0, 1).reshape(k, c, r, s)
    return in_weight_format(gradient, problem)


def _row(function: Callable[..., Tensor], direction: Direction) -> Pass:
    return Row(
        "fft",
        function,
        supports,
        dtypes=WIDE,
        bound=promise(SPECTRAL, direction),
        estimate=estimate,
        accuracy="float32",
        scratch=spectra_bytes,
        devices=EVERYWHERE,
        reach="image",
    )


ROWS: Passes = (
    _row(forward, "forward"),
    _row(input_gradient, "input gradient"),
    _row(weight_gradient, "weight gradient"),
)
