"""Decisions for all convolutions of a program at once, before the first request."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from bestof.torch.plan.program import Program
from bestof.torch.plan.selection import selector

# Twice the last-level cache of most machines: what a layer reads in a running network has left the cache since.
_SWEPT_FLOATS = 16 * 2**20
_MOST_CALLS = 1000


def return_freed_memory() -> None:
    """Hand what tuning has allocated and freed back to the system, where its C library can.

    Measured on ResNet34: 107 MB of 714, which the allocator would have kept between the packed weights.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def tune(program: Program, inputs: Sequence[Tensor]) -> None:
    """Race the algorithms of each layer on the values that reach it, one layer after the other.

    Before each trial the caches are swept and the input is read again, so that weights are as cold, and the input as
    warm, as in a running network: measured hot, the largest transformed weights look faster than they are.
    """
    sweep = torch.zeros(_SWEPT_FLOATS)
    binding = program.borrow()
    try:
        with torch.no_grad():
            binding.slots[: len(inputs)] = list(inputs)
            for step in binding.steps:
                one = step.convolution
                if one is not None and not one.learn():
                    x = one.x if isinstance(one.x, Tensor) else one.x()
                    for _ in range(_MOST_CALLS):
                        sweep.add_(1.0)
                        x.sum()
                        selector()(one)
                        if one.learn():
                            break
                (one.run if one is not None else step.run)()
        binding.refresh()
    finally:
        program.give_back(binding)
