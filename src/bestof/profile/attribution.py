"""Tell which module each operation belongs to, that of the backward pass included.

In the forward pass the innermost range of a module encloses the operation. In the backward pass the
node of autograd carries the number that it was given in the forward pass, and so the module of the
operation that made it.
"""

from __future__ import annotations

from collections.abc import Sequence

from bestof.profile.operation import BACKWARD, KERNEL, MODULE, Operation

Module = tuple[str, str]  # its path, and its class

NO_MODULE: Module = ("", "")


def modules_of(operations: Sequence[Operation]) -> dict[Operation, Module]:
    """Return the module of each operation; the operations are in the order of their beginnings."""
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
            # The last operation with a number made the node: those before it had peeked at the
            # number.
            made[one.thread, one.sequence] = module
        found[one] = module
    return found


def _in_backward(one: Operation) -> bool:
    return any(around.name.startswith(BACKWARD) for around in one.enclosing())
