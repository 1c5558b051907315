"""Addresses of plans and packed weights, for the native callers of this project. Unchecked."""

from __future__ import annotations

from bestof.kernels._native import (
    PackedMatrix,
    PackedWeights,
    Runnable,
    c_calls,
    fingerprint,
)
from bestof.kernels.attention import AttentionPlan
from bestof.kernels.attention_backward import AttentionBackwardPlan
from bestof.kernels.conv import Conv2dPlan
from bestof.kernels.matmul import MatmulPlan

__all__ = ["Runnable", "c_calls", "fingerprint", "packed_address", "plan_address"]

# fingerprint(memory, bytes) hashes the bits at an address (see native/conv/fingerprint.h).
# c_calls() returns the address of the table that native/bindings/c_calls.h describes.


def plan_address(
    plan: Conv2dPlan | MatmulPlan | AttentionPlan | AttentionBackwardPlan,
) -> int:
    """Return the address that `c_calls` takes for a plan. It is valid while the plan lives."""
    return plan._plan.address


def packed_address(packed: PackedWeights | PackedMatrix) -> int:
    """Return the address that `c_calls` takes for packed weights, valid while they live."""
    return packed.address
