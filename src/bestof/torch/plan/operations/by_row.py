"""Operators of PyTorch that rows of `torch.ops` compute, as in eager calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from bestof.accuracy import Accuracy, parse_accuracy
from bestof.torch.ops import table
from bestof.torch.ops.operation import Call, Operands
from bestof.torch.ops.operation import Operation as EagerOperation
from bestof.torch.plan.operations.checks import expect, val
from bestof.torch.plan.operations.operands import as_planned
from bestof.torch.plan.operations.operation import Operation
from bestof.torch.plan.steps.chosen_step import Choice
from bestof.torch.plan.steps.placed_node import PlacedNode
from bestof.torch.plan.steps.row_step import RowProblem, RowStep
from bestof.torch.plan.steps.step import Step
from bestof.torch.plan.trace.core_call import CoreCall, core_call, planned_strides
from bestof.torch.plan.trace.strides import with_strides
from bestof.torch.rows.offer import is_chosen_for
from bestof.torch.rows.row_selector import row_selector


class Found(NamedTuple):
    """What a node computes: an operation of the table, and its call.

    operands: those of the call, with nodes for tensors.
    """

    operation: EagerOperation[Any]
    problem: Any
    operands: Operands


@dataclass(frozen=True, slots=True)
class ByRow(Operation):
    """The operator that the node names, by a row of the operation of that name.

    The problem and the selector are those of an eager call.
    """

    name: ClassVar[str] = "by row"

    operation: str
    accuracy: Accuracy

    @property
    def lies_in_arena(self) -> bool:
        """Whether kernels in C++ write the result. The results of functions stay where they are."""
        named = table.operation(self.operation)
        return named is not None and any(row.compiled is not None for row in named.rows)

    def choice(self, node: Node, accuracy: Accuracy) -> Choice | None:  # noqa: ARG002  # its own
        """Return the choice among the rows; None if PyTorch answers for these threads."""
        found = self._found(node)
        return None if found is None else Choice(RowProblem(found.operation, found.problem))

    def bind(self, node: Node, placed: PlacedNode) -> Step:
        """Return the step; operands are looked up at each call."""
        found, core = self._found(node), core_call(node)
        assert core is not None
        slots, slot, dead = placed.slots, placed.slot, placed.dead
        results: tuple[Tensor, ...] = ()
        put: Callable[[Tensor], object] = partial(slots.__setitem__, slot)
        written = None
        if self.lies_in_arena:
            written, put = _written(core, placed), placed.out.copy_
            others = (torch.empty(one.shape, dtype=one.dtype) for one in core.results[1:])
            results = placed.out, *others

        def done() -> None:
            for one in dead:
                slots[one] = None

        if found is None or placed.choice is None:
            by_pytorch = written or _run_and_put(core, placed, put)

            def run() -> None:
                by_pytorch()
                done()

            return placed.step(str(core.target), run)
        finders = [_finder(one, placed) for one in found.operands]
        step = RowStep(
            placed.choice,
            row_selector(found.operation),
            lambda: [find() for find in finders],
            results,
            put,
            written,
            done,
        )
        return placed.step(str(step.problem), step.run, step)

    def check(self, node: Node) -> None:
        """Raise ValueError if the node runs another operator, or yields something else."""
        parse_accuracy(self.accuracy, "accuracy")
        core, named = core_call(node), table.operation(self.operation)
        operators = () if named is None else named.operators
        expect(
            core is not None and core.operator in operators and is_dense_result(node, core),
            node.name,
        )

    def _found(self, node: Node) -> Found | None:
        core = core_call(node)
        return None if core is None else find_operation(core, self.accuracy, self.operation)


def is_dense_result(node: Node, core: CoreCall) -> bool:
    """Return whether a result is contiguous floating-point numbers, and no view of an operand.

    All values must have strides, and lie on the CPU; those of a plan from a file are "meta".
    """
    value, operands = val(node), [val(one) for one in node.all_input_nodes]
    aliased = any(one.alias_info is not None for one in core.target._schema.returns)
    return (
        not aliased
        and value.is_floating_point()
        and all(one.layout is torch.strided for one in (value, *operands))
        and all(one.device.type in ("cpu", "meta") for one in (value, *operands))
        and value.numel() > 0
        and all(one.is_contiguous() for one in (value, *core.results))
    )


def find_operation(core: CoreCall, accuracy: Accuracy, name: str | None = None) -> Found | None:
    """Return the operation that chooses for a call, and the problem of the choice."""
    nodes = [one for one in pytree.tree_leaves(core.arguments) if isinstance(one, Node)]
    tensors = {one: described(one) for one in nodes}
    arguments = pytree.tree_map_only(Node, tensors.__getitem__, core.arguments)
    chosen = operation_of_call(core.operator, arguments, accuracy, name)
    if chosen is None:
        return None
    operation, call = chosen
    back = {id(one): node for node, one in tensors.items()}
    if any(isinstance(one, Tensor) and id(one) not in back for one in call.operands):
        return None
    operands = tuple(back[id(one)] if isinstance(one, Tensor) else one for one in call.operands)
    return Found(operation, call.problem, operands)


def operation_of_call(
    operator: str, arguments: tuple[Any, ...], accuracy: Accuracy, name: str | None = None
) -> tuple[EagerOperation[Any], Call] | None:
    """Return the operation that chooses for a call, perhaps of this name only, and the call."""
    for operation in table.OPERATIONS:
        if operator not in operation.operators or name not in (None, operation.name):
            continue
        if not is_chosen_for(operation):
            continue
        given = operation.arguments(operator, arguments)
        with torch.no_grad():  # as plans run
            call = None if given is None else operation.call(accuracy, *given)
        if call is not None:
            return operation, call
    return None


def described(node: Node) -> Tensor:
    """Return a tensor that lies in memory as a value will, of undefined numbers."""
    value = val(node)
    return torch.empty_strided(value.shape, planned_strides(node), dtype=value.dtype)


def _finder(argument: Any, placed: PlacedNode) -> Callable[[], Any]:
    """Return a function that looks up an argument, which lies in memory as planned."""
    if not isinstance(argument, Node):
        return lambda: argument
    find, planned, strides = placed.finder(argument), val(argument), planned_strides(argument)

    def found() -> Any:
        return with_strides(as_planned(find(), planned, "an operand"), strides)

    return found


def _written(core: CoreCall, placed: PlacedNode) -> Callable[[], object] | None:
    """Return a function that runs an operator and writes the result into the arena.

    None if the operator has no form that writes to a given place. Such results are copied.
    """
    packet = core.target.overloadpacket
    if core.target._overloadname != "default" or "out" not in packet.overloads():
        return None
    if torch.Tag.generated in packet.out.tags or len(core.results) > 1:
        return None
    call, out = _called(packet.out, core, placed), placed.out
    return lambda: call(out=out)


def _run_and_put(
    core: CoreCall, placed: PlacedNode, put: Callable[[Tensor], object]
) -> Callable[[], object]:
    """Return a function that runs an operator, and hands on its first result."""
    call = _called(core.target, core, placed)

    def run() -> None:
        found = call()
        put(found if isinstance(found, Tensor) else found[0])

    return run


def _called(target: Any, core: CoreCall, placed: PlacedNode) -> Callable[..., Any]:
    """Return a function that calls an operator with the arguments of a core call."""
    finders = [_finder(one, placed) for one in core.arguments]
    named = [one.name for one in core.target._schema.arguments if one.kwarg_only]
    count = len(finders) - len(named)

    def call(**more: Any) -> Any:
        given = [find() for find in finders]
        return target(*given[:count], **dict(zip(named, given[count:], strict=True)), **more)

    return call
