"""Copies of values between channels last and channels first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from bestof.kernels import transpose
from bestof.torch.plan.operations.checks import expect, is_alike, is_rows
from bestof.torch.plan.operations.operation import Operation
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.step import Step

LEAST = 2**14
"""Elements from which on the native kernel copies a value into channels last. Its call takes 3.5 us
of Python: PyTorch copies 64 channels @14 in 3.8 us, and the kernel in 4.4. Of 4 channels @8 these
are 0.8 and 3.7 us, on one thread of a Zen 5."""


@dataclass(frozen=True, slots=True)
class ToChannelsLast(Operation):
    """A copy in channels last of a value that PyTorch computes."""

    name: ClassVar[str] = "rows"
    yields_rows: ClassVar[bool] = True

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step, which looks up the value at each call."""
        fill = filler(placed.finder(node.args[0]), placed.out)
        return placed.step("to channels last", fill)

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree."""
        expect(len(node.args) == 1, node.name)
        expect(is_rows(node) and is_alike(node, node.args[0]), node.name)


@dataclass(frozen=True, slots=True)
class ToChannelsFirst(Operation):
    """A contiguous copy of a value in channels last."""

    name: ClassVar[str] = "columns"
    reads_rows: ClassVar[bool] = True

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        return placed.step("to channels first", _turned(placed.tensor(node.args[0]), placed.out))

    def check(self, node: Node) -> None:
        """Raise ValueError if shapes disagree."""
        expect(len(node.args) == 1, node.name)
        given = node.args[0]
        expect(is_rows(given) and is_alike(node, given), node.name)


def filler(find: Callable[[], Tensor], into: Tensor) -> Callable[[], None]:
    """Return a function that copies what `find` returns into a value in channels last."""
    is_turned = into.dtype is torch.float32 and into.numel() >= LEAST
    # Tensors would be handed over by DLPack, which takes 3 us of Python.
    to: Any = into.permute(0, 2, 3, 1).numpy() if is_turned else None

    def fill() -> None:
        given = find()
        if to is None or not given.is_contiguous():
            into.copy_(given)
        else:  # 3 channels @224: 25 us; PyTorch takes 160
            transpose(given.detach().numpy(), (0, 2, 3, 1), out=to)

    return fill


def _turned(x: Tensor, out: Tensor) -> Callable[[], object]:
    """Return a function that copies x into `out`: 59 us for 512 channels @7; PyTorch takes 106."""
    if x.dtype is not torch.float32:
        return lambda: out.copy_(x)
    from_: Any = np.asarray(x.permute(0, 2, 3, 1).numpy())
    to: Any = out.numpy()
    return lambda: transpose(from_, (0, 3, 1, 2), out=to)
