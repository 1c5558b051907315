"""Finds the phase of each operation: loading, preparation, forward, loss, backward, optimizer."""

from __future__ import annotations

from collections.abc import Iterable

from bestof.profile.timeline.operation import BACKWARD, LOADING, MODULE, OPTIMIZER, Operation

# An operation outside of all ranges has the phase of the one before it.
_BEHIND = {
    "loading": "preparation",
    "optimizer": "preparation",
    "forward": "loss",
    "loss": "loss",
    "backward": "optimizer",
    "preparation": "preparation",
    "other": "preparation",
}


def phases_of(operations: Iterable[Operation]) -> dict[Operation, str]:
    """Return the phase of each operation. Operations are in the order in which they began."""
    phases: dict[Operation, str] = {}
    last: dict[int, str] = {}
    operations = list(operations)
    trains = any(one.name.startswith(BACKWARD) for one in operations)
    for one in operations:
        own, outer = _own(one), one.outer
        if own is None:
            own = phases[outer] if outer is not None else _BEHIND[last.get(one.thread, "other")]
            if own == "loss" and not trains:
                own = "other"
        elif outer is not None and phases[outer] in ("loading", "backward", "optimizer"):
            # A forward pass may run again in the backward pass (checkpoints), or in the optimizer
            # (closures).
            own = phases[outer]
        phases[one] = own
        if outer is None and not one.is_foreign:
            last[one.thread] = own
    return phases


def _own(one: Operation) -> str | None:
    """Return the phase that the name of an operation implies, or None."""
    if one.name.startswith(BACKWARD):
        return "backward"
    if not one.annotation:
        return None
    if one.name.startswith(LOADING):
        return "loading"
    if one.name.startswith(OPTIMIZER):
        return "optimizer"
    if one.name.startswith(MODULE) and one.outer is None:
        return "loss" if one.name.split(":")[1].endswith("Loss") else "forward"
    return None
