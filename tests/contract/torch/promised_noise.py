"""What a model may come to where every convolution errs as much as it may: the bound of whole
models, derived.

A convolution promises an error relative to the root mean square of its result, in the forward pass
and in both gradients. What that comes to at the end of a network depends on the network. So the
model is run in float64 with random errors of exactly the promised size behind every convolution,
and what this changes is what may be changed. The errors of a real kernel are not random: a factor
of 2 is left for that. PyTorch's own float32 result stands for the rounding of all that is not
convolution; but for the gradient of a bias, which is a sum over all images and pixels. Behind a
norm it is zero, and nothing but rounding is left of it: PyTorch's few values are one draw of many.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from bestof.kernels import algorithms

PROMISED = algorithms()["winograd4"].error.rms
"""The largest error that accuracy float32 allows, root mean square."""

_KERNELS_ARE_NOT_RANDOM = 2.0

# Summed one by one, n values of rms g have a rounding error of 2^-24 g n / sqrt(6): the k-th
# partial sum is about g sqrt(k), and its error uniform in half a unit in the last place. oneDNN
# sums so in blocks: 1.4e-8 for n = 16384 and g = 1e-4, where this is 4e-8 and pairwise sums have
# 1e-9. Spread over the values, it is so much of each.
_SUMMED = 2.0**-24 / sqrt(6)

Run = Callable[[nn.Module, torch.dtype], Sequence[Tensor]]
"""Run a model of this dtype, which it may change: tensors to compare."""


class _Noise(torch.autograd.Function):
    """The identity but for noise: on the value where `forwards`, on the gradient where not."""

    @staticmethod
    def forward(context: Any, x: Tensor, forwards: bool, generator: torch.Generator) -> Tensor:
        context.forwards, context.generator = forwards, generator
        return _noisy(x, generator) if forwards else x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if context.forwards:
            channels = (1, gradient.shape[1], *[1] * (gradient.dim() - 2))
            draws = torch.randn(channels, generator=context.generator, dtype=gradient.dtype)
            return gradient + _SUMMED * gradient.square().mean().sqrt() * draws, None, None
        return _noisy(gradient, context.generator), None, None


def _noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    return x + PROMISED * x.square().mean().sqrt() * noise


@contextmanager
def _noise(model: nn.Module, seed: int) -> Iterator[None]:
    generator = torch.Generator().manual_seed(seed)
    hooks = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            hooks += [
                module.register_forward_pre_hook(
                    lambda _, args: (_Noise.apply(args[0], False, generator), *args[1:])
                ),
                module.register_forward_hook(
                    lambda _, args, out: _Noise.apply(out, True, generator)
                ),
                module.weight.register_hook(lambda gradient: _noisy(gradient, generator)),
            ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def assert_as_promised(got: Sequence[Tensor], model: nn.Module, run: Run) -> None:
    """What ours gave is as far from what `run` gives in float64 as the kernels' promises allow, and
    no farther."""
    exact = run(copy.deepcopy(model).double(), torch.float64)
    plain = run(copy.deepcopy(model), torch.float32)
    allowed = [_distance(one, other) for one, other in zip(plain, exact, strict=True)]
    # A result may be one number, such as the last loss. The larger of two draws was 9.8e-3 for a
    # MobileNetV2 on a Zen 3 whose loss was off by 4.4e-2; the largest of eight allows that.
    for seed in range(8):
        noisy = copy.deepcopy(model).double()
        with _noise(noisy, seed):
            for index, result in enumerate(run(noisy, torch.float64)):
                allowed[index] = max(allowed[index], _distance(result, exact[index]))
    assert len(got) == len(exact)
    for index, (one, other, limit) in enumerate(zip(got, exact, allowed, strict=True)):
        assert one.shape == other.shape
        error = _distance(one, other)
        bound = _KERNELS_ARE_NOT_RANDOM * limit
        assert error <= bound, f"tensor {index} of {len(exact)}: {error:.2e}, {bound:.2e} allowed"


def _distance(got: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference; NaN where there is one."""
    return (got.double() - expected.double()).square().mean().sqrt().item()
