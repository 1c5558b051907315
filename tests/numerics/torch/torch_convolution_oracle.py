"""What the numerics tests of PyTorch's convolutions share: operands, the float64 reference, the
comparison."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from bestof.torch.ops.bound import ErrorBound
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv

ORIGINALS = PyTorchConv(
    torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
)

Operands = dict[str, Tensor]
"""input (N, C, H, W), weight (K, C/g, R, S), bias (K), grad_output (N, K, P, Q)."""


def zero_mean(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Normally distributed."""
    return torch.randn(shape, generator=generator)


def relu_like(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """What a ReLU leaves of it."""
    return torch.randn(shape, generator=generator).relu_()


def integers(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """-4 to 4: every sum of their products below 2^24 is exact in float32, in any order."""
    return torch.randint(-4, 5, shape, generator=generator).float()


KINDS: dict[str, Callable[[tuple[int, ...], torch.Generator], Tensor]] = {
    "zero mean": zero_mean,
    "relu": relu_like,
    "integers": integers,
}


@lru_cache(maxsize=8)
def operands(problem: ConvProblem, kind: str, seed: int = 20) -> Operands:
    """The operands; only the input takes after `kind`, unless it is integers: weights and gradients
    have zero mean."""
    generator = torch.Generator().manual_seed(seed)
    other = integers if kind == "integers" else zero_mean
    dtype = getattr(torch, problem.dtype)
    return {
        "input": KINDS[kind](problem.input_shape, generator).to(dtype),
        "weight": other(problem.weight_shape, generator).to(dtype),
        "bias": other(problem.weight_shape[:1], generator).to(dtype),
        "grad_output": other(problem.output_shape, generator).to(dtype),
    }


def call(
    catalogue: Conv2dPass, alternative: Pass, tensors: Operands, problem: ConvProblem
) -> Tensor:
    """The result of one alternative."""
    bias = tensors["bias"] if problem.bias else None
    arguments: dict[str, tuple[Tensor | None, ...]] = {
        "forward": (tensors["input"], tensors["weight"], bias),
        "input gradient": (tensors["grad_output"], tensors["weight"]),
        "weight gradient": (tensors["grad_output"], tensors["input"]),
    }
    return alternative.function(ORIGINALS, problem, *arguments[catalogue.direction])


def pytorch(direction: str, tensors: Operands, problem: ConvProblem) -> Tensor:
    """PyTorch's own result on these operands, as it comes."""
    geometry = (problem.stride, problem.padding, problem.dilation, False, (0, 0), problem.groups)
    if direction == "forward":
        bias = tensors["bias"] if problem.bias else None
        return torch.ops.aten.convolution(tensors["input"], tensors["weight"], bias, *geometry)
    mask = (direction == "input gradient", direction == "weight gradient", False)
    gradients = torch.ops.aten.convolution_backward(
        tensors["grad_output"], tensors["input"], tensors["weight"], None, *geometry, mask
    )
    return gradients[0] if mask[0] else gradients[1]


@lru_cache(maxsize=8)
def reference(direction: str, problem: ConvProblem, kind: str, seed: int = 20) -> Tensor:
    """The float64 result."""
    tensors = {name: tensor.double() for name, tensor in operands(problem, kind, seed).items()}
    return pytorch(direction, tensors, problem)


def assert_within(result: Tensor, expected: Tensor, bound: ErrorBound) -> None:
    """Error relative to the root mean square of the reference; comparisons are such that NaN
    fails."""
    assert result.shape == expected.shape
    scale = expected.square().mean().sqrt()
    error = (result.double() - expected).abs()
    rms, maximum = (error.square().mean().sqrt() / scale).item(), (error.max() / scale).item()
    assert rms <= bound.rms, f"rms error {rms:.3g} above the promised {bound.rms:.3g}"
    assert maximum <= bound.maximum, (
        f"largest error {maximum:.3g} above the promised {bound.maximum:.3g}"
    )
