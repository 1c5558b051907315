"""What our own integrations take in place of arrays: addresses, of which nothing is checked."""

from __future__ import annotations

from bestof.kernels._native import PackedWeights, c_calls, fingerprint
from bestof.kernels.conv import Conv2dPlan

__all__ = ["c_calls", "fingerprint", "packed_address", "plan_address"]

# fingerprint(memory, bytes) hashes the bits at an address (see native/conv/fingerprint.h).
# c_calls() returns the address of the table that native/bindings/c_calls.h describes.


def plan_address(plan: Conv2dPlan) -> int:
    """What `c_calls` takes for this plan, while it lives."""
    return plan._plan.address


def packed_address(packed: PackedWeights) -> int:
    """What `c_calls` takes for these packed weights, while they live."""
    return packed.address
