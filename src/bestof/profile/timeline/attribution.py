"""Finds the module of each operation, also in the backward pass.

In the forward pass, the innermost range of a module encloses the operation. In the backward pass,
the node of autograd has the number that it got in the forward pass. The operation with this number
made the node, so its module is the module of the node.
"""

from __future__ import annotations

from collections.abc import Sequence

from bestof.profile.timeline.operation import BACKWARD, KERNEL, MODULE, Operation

Module = tuple[str, str]  # path and class

NO_MODULE: Module = ("", "")


def modules_of(operations: Sequence[Operation]) -> dict[Operation, Module]:
    """Return the module of each operation. Operations are in the order in which they began."""
    found: dict[Operation, Module] = {}
    made: dict[tuple[int, int], Module] = {}
    for one in operations:
        module = NO_MODULE if one.parent is None else found[one.parent]
        if one.annotation and one.name.startswith(MODULE):
            _, kind, path = one.name.split(":", 2)
            module = (path, kind)
        elif one.name.startswith(KERNEL):
            module = (one.name.split(":", 3)[3], "step of a plan")
        elif one.name.startswith(BACKWARD):
            module = made.get((one.forward_thread, one.sequence), module)
        elif one.sequence >= 0 and not _in_backward(one):
            # The last operation with a number made the node. Earlier ones only read the number.
            made[one.thread, one.sequence] = module
        found[one] = module
    return found


def _in_backward(one: Operation) -> bool:
    return any(around.name.startswith(BACKWARD) for around in one.enclosing())
