"""The operations and ranges that PyTorch's profiler recorded, nested by thread."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

# In front of the names of our own ranges.
MODULE = "bestof.module:"
KERNEL = "bestof.kernel:"
THREAD = "bestof.thread:"
STEP_END = "bestof.step_end"  # inside of an optimizer's step that ends a step of the program

OPTIMIZER, LOADING = "Optimizer.", "enumerate(DataLoader)"
# The ranges that tell something. Others are the program's own, as by `record_function`.
_TELLING = (MODULE, THREAD, STEP_END, OPTIMIZER, LOADING)

# The operations whose calls are kept although they contain lines.
CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")

BACKWARD = "autograd::engine::evaluate_function: "


@dataclass(slots=True, eq=False)
class Operation:
    """One event of the profiler. Times are nanoseconds since the epoch.

    `shapes` has the shape of each argument. `concrete` has its value if it is a number, a list of
    numbers or a truth value, and None otherwise. `call` is what a replay needs, as text.
    """

    name: str
    start: int
    end: int
    thread: int
    sequence: int
    forward_thread: int
    annotation: bool
    shapes: Sequence[Sequence[int]]
    dtypes: Sequence[str]
    concrete: Sequence[Any] = ()
    call: str = ""
    parent: Operation | None = None
    children: list[Operation] = field(default_factory=list)

    def enclosing(self) -> Iterable[Operation]:
        """Yield itself and everything around it, from inside to outside."""
        one: Operation | None = self
        while one is not None:
            yield one
            one = one.parent

    @property
    def is_foreign(self) -> bool:
        """Whether this is a range of the program's own, such as that of a `record_function`."""
        return self.annotation and not self.name.startswith(_TELLING)

    @property
    def outer(self) -> Operation | None:
        """What is around it, apart from the program's own ranges: they change no phase or step."""
        one = self.parent
        while one is not None and one.is_foreign:
            one = one.parent
        return one


def operations_of(events: Iterable[Any]) -> list[Operation]:
    """Return the processor's events of Kineto in the order of their beginnings, with parents and
    children."""
    found = [
        Operation(
            name=event.name(),
            start=event.start_ns(),
            end=event.start_ns() + event.duration_ns(),
            thread=event.start_thread_id(),
            sequence=event.sequence_nr(),
            forward_thread=event.fwd_thread_id(),
            annotation=_is_annotation(event),
            shapes=event.shapes(),
            dtypes=event.dtypes(),
            concrete=event.concrete_inputs(),
            call=_call_of(event),
        )
        for event in events
        if event.activity_type() in ("cpu_op", "user_annotation")
    ]
    found.sort(key=lambda one: (one.start, -one.end))
    nest(found)
    return found


def _call_of(event: Any) -> str:
    """Return the call of a Kineto event as text. Empty if it is not an operation of PyTorch."""
    name: str = event.name()
    if not name.startswith("aten::"):
        return ""
    rows = zip(
        event.structured_input_shapes(),
        event.structured_input_strides(),
        event.dtypes(),
        event.concrete_inputs(),
        strict=False,
    )
    return json.dumps([name, *rows])


def _is_annotation(event: Any) -> bool:
    """Return whether an event is a range and not an operation. A step of a plan is an operation."""
    name: str = event.name()
    if name.startswith(KERNEL):
        return False
    annotated: bool = event.activity_type() == "user_annotation"
    return annotated or name.startswith((MODULE, THREAD, STEP_END))


def nest(operations: Sequence[Operation]) -> None:
    """Set parents and children; the operations are in the order of their beginnings."""
    open_: dict[int, list[Operation]] = {}
    for one in operations:
        stack = open_.setdefault(one.thread, [])
        while stack and stack[-1].end <= one.start:
            stack.pop()
        if stack:
            one.parent = stack[-1]
            stack[-1].children.append(one)
        stack.append(one)
