"""The cost of a settled convolution or matrix product, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

REACH = 2e-6
"""Seconds a call that a settled convolution or product may take beyond PyTorch's own."""
REACH_IN_PYTHON = 10e-6
"""The same if PyTorch lacks what the compiled side is built from."""


@dataclass(frozen=True, slots=True)
class CallTime:
    """Seconds a call of a convolution of 8 x 8 pixels and 4 channels, or of a linear layer.

    `pytorch`: PyTorch without bestof. The others are seconds beyond that. `passed`: every call goes
    through a Python function that only calls PyTorch's kernel. `enabled`: bestof is enabled and has
    settled on PyTorch's own kernel; `spread` is half the distance between the quartiles of the
    repeats. `in_python`: the same without the compiled side, None if bestof then leaves the call
    to PyTorch.
    """

    name: str
    pytorch: float
    passed: float
    in_python: float | None
    enabled: float
    spread: float
