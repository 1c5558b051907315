"""The gradients of group norm in channels last: PyTorch's own kernel, or a native one.

On a Zen 3 the native kernel takes 0.2 to 1 of PyTorch's time. PyTorch's kernels for channels first,
and its forward pass, have no row: they reach the speed of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestof.accuracy import DEFAULT_ACCURACY, Accuracy
from bestof.kernels import GroupNormPlan
from bestof.torch.backends.shim import Native
from bestof.torch.ops.comparison import energies
from bestof.torch.ops.dtypes import FLOAT32
from bestof.torch.ops.examples import random
from bestof.torch.ops.native_operands import (
    address,
    are_like,
    compiled_by,
    is_channels_last,
    is_large,
)
from bestof.torch.ops.norm.gradient_parts import gradient_parts
from bestof.torch.ops.operation import Call
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.rounding_operation import Part, RoundingOperation
from bestof.torch.ops.row import Row

LEAST = 3 * 2**17
"""Numbers for each thread. PyTorch takes 0.25 to 2 milliseconds on a Zen 3."""

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


class GroupNormProblem(NamedTuple):
    """The gradients of a group norm of float32 images in channels last.

    mask: whether the gradients of the input, the weight and the bias are wanted.
    """

    shape: tuple[int, ...]
    groups: int
    scaled: bool
    mask: tuple[bool, ...]
    threads: int
    accuracy: Accuracy

    @property
    def pixels(self) -> int:
        """The pixels of an image."""
        return self.shape[2] * self.shape[3]

    def canonical(self) -> str:
        """Return the canonical text for the store. It contains all that distinguishes problems."""
        return f"{self} threads={self.threads}"

    def __str__(self) -> str:
        words = ["x".join(map(str, self.shape)), f"groups={self.groups}", *["scale"] * self.scaled]
        words.append("gradients=" + "".join(str(int(one)) for one in self.mask))
        words += [self.accuracy] * (self.accuracy != DEFAULT_ACCURACY)
        return " ".join(words)


def as_is(
    original: Kernel,
    problem: GroupNormProblem,
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
) -> Gradients:
    """Return the gradients by PyTorch's own kernel."""
    images, channels = problem.shape[:2]
    sizes = images, channels, problem.pixels, problem.groups
    return original(  # type: ignore[no-any-return]
        gradient, x, mean, rstd, weight, *sizes, problem.mask
    )


def native(
    _original: Kernel,
    problem: GroupNormProblem,
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
) -> Gradients:
    """Return the gradients by a native kernel, whose vectors hold channels."""
    images, channels = problem.shape[:2]
    of_x = None
    if problem.mask[0]:
        of_x = torch.empty(
            problem.shape, dtype=x.dtype, device="cpu", memory_format=torch.channels_last
        )
    of_weight, of_bias = (
        torch.empty(channels, dtype=x.dtype, device="cpu") if wanted else None
        for wanted in problem.mask[1:]
    )
    GroupNormPlan(images, problem.pixels, channels, problem.groups).run_backward(
        address(gradient),
        address(x),
        address(mean),
        address(rstd),
        address(weight),
        address(of_x),
        address(of_weight),
        address(of_bias),
    )
    return of_x, of_weight, of_bias


def compiled(
    problem: GroupNormProblem, _gradient: Tensor, x: Tensor, *_others: Tensor | None
) -> Native | None:
    """Return the kernel of `native` for settled calls, which makes all gradients."""
    if not all(problem.mask):
        return None
    images, channels = problem.shape[:2]
    plan = GroupNormPlan(images, problem.pixels, channels, problem.groups)
    shapes = problem.shape, (channels,), (channels,)
    return compiled_by(plan.runnable(), 5, *shapes, like=x, channels_last=1)


class GroupNormBackward(RoundingOperation[GroupNormProblem]):
    """`aten::native_group_norm_backward`."""

    name = "group norm backward"
    operator = "aten::native_group_norm_backward"
    least = LEAST
    rows = (
        Row("as is", as_is),
        Row("native", native, dtypes=(FLOAT32,), accuracy="float32", compiled=compiled),
    )

    def call(
        self,
        level: Accuracy,
        gradient: Tensor,
        x: Tensor,
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor | None,
        images: int,
        channels: int,
        pixels: int,
        groups: int,
        output_mask: Sequence[bool],
    ) -> Call | None:
        """Return the problem and the tensors of a call; None if PyTorch answers it."""
        if level == "exact" or x.dtype not in self.dtypes or not is_large(x, LEAST):
            return None
        if not is_channels_last(x) or not is_channels_last(gradient):
            return None
        mask = tuple(output_mask)
        if not any(mask) or (weight is None and any(mask[1:])):
            return None
        others = (gradient, mean, rstd) if weight is None else (gradient, mean, rstd, weight)
        if not are_like(x, *others) or gradient.shape != x.shape:
            return None
        if (images, channels, pixels) != (*x.shape[:2], x.shape[2] * x.shape[3]):
            return None
        if groups < 1 or channels % groups or (weight is not None and weight.shape != (channels,)):
            return None
        if not all(one.is_contiguous() for one in others[1:]):
            return None
        if mean.numel() != images * groups or rstd.numel() != images * groups:
            return None
        problem = GroupNormProblem(
            tuple(x.shape), groups, weight is not None, mask, torch.get_num_threads(), level
        )
        return Call(problem, (gradient, x, mean, rstd, weight))

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return gradients of images in channels last, in 32 groups."""
        found = {}
        for n, c, side in ((8, 64, 64), (2, 640, 32)):
            x, gradient = (
                random(n, c, side, side, seed=seed).contiguous(memory_format=torch.channels_last)
                for seed in range(2)
            )
            sizes = n, c, side * side, 32
            _, mean, rstd = torch.native_group_norm(x, None, None, *sizes, 1e-5)
            arguments = (gradient, x, mean, rstd, random(c), *sizes, (True, True, True))
            found[f"{n} x {c} x {side} x {side}"] = arguments
        return found

    def parts(self, call: Call, _expected: Sequence[Tensor | None]) -> Sequence[Part]:
        """Return the scales: three terms for the input, sums over the images for the others.

        The numbers of a group less their mean are differences. Their errors are relative to the
        mean.
        """
        gradient, _, mean, rstd, weight = call.operands
        assert gradient is not None
        assert mean is not None
        assert rstd is not None
        problem: GroupNormProblem = call.problem
        size = problem.shape[1] // problem.groups * problem.pixels
        sums, terms = energies(gradient, (0, 2, 3)), problem.shape[0] * problem.pixels
        return gradient_parts(gradient, mean * rstd, rstd, weight, sums, size, terms)
