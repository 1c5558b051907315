"""Merges the lines of a log and the operations of PyTorch's profiler into spans on one time
line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from bestof.profile.log import Log
from bestof.profile.profile import Profile, Step
from bestof.profile.span import Span
from bestof.profile.timeline.attribution import NO_MODULE, Module, modules_of
from bestof.profile.timeline.between import Reading, spans_between
from bestof.profile.timeline.operation import (
    CONVOLUTIONS,
    KERNEL,
    MODULE,
    STEP_END,
    THREAD,
    Operation,
)
from bestof.profile.timeline.own_lines import Decisions, own_lines
from bestof.profile.timeline.phases import phases_of
from bestof.profile.timeline.placement import Placed, place
from bestof.profile.verbose.line import Line
from bestof.profile.verbose.mkl import dtype_of
from bestof.profile.verbose.work import bytes_of, flops_of

# The profiler's data types, by oneDNN's names.
_DTYPES = {
    **{"float": "f32", "double": "f64", "c10::BFloat16": "bf16", "c10::Half": "f16"},
    **{
        "int": "s32",
        "long int": "s64",
        "signed char": "s8",
        "unsigned char": "u8",
        "bool": "boolean",
    },
}

# Returns the readings of the clocks of one of the threads.
Clocks = Callable[[int, Sequence[Operation]], Sequence[Reading]]

# The beginning of the names of plan steps among the operations.
_STEP = "bestof::step"


def merge(
    title: str,
    log: Log,
    operations: Sequence[Operation],
    samples: Sequence[int],
    began: int,
    ended: int,
    host: Mapping[str, str],
    decisions: Decisions,
    clocks: Clocks,
) -> Profile:
    """Make the profile of a capture from `began` to `ended`, in nanoseconds since the epoch.

    `samples` holds the batch of each call of an outermost module, in order. `decisions` are those
    of bestof. `clocks` returns the readings of a thread's clocks.
    """
    thread = _main_thread(operations)
    readings = clocks(thread, operations)
    operations = [one for one in operations if not one.name.startswith(THREAD)]
    placed = place(log.lines, operations)
    placed += own_lines(operations, placed, decisions)
    modules, phases = modules_of(operations), phases_of(operations)
    steps = _steps(operations, thread, samples, began)
    inside = _lines_inside(placed)
    around = {outer for one in inside for outer in one.enclosing()}
    spans = [
        span
        for one in operations
        if not one.annotation
        for span in _spans(
            one, inside.get(one, ()), modules[one], phases[one], began, one not in around
        )
    ]
    spans += [
        _line_span(one.line, one, 0.0, None, NO_MODULE, "other", began)
        for one in placed
        if one.operation is None
    ]
    spans.sort(key=lambda one: (one.start, -one.seconds))
    return Profile(
        title=title,
        wall=(ended - began) / 1e9,
        spans=tuple(_in_steps(spans, steps)),
        between=tuple(
            spans_between(
                [one for one in operations if one.thread == thread], phases, readings, steps, began
            )
        ),
        steps=tuple(steps),
        thread=thread,
        lines=len(placed),
        unattributed=sum(one.operation is None for one in placed),
        unknown=log.unknown,
        examples=tuple(log.examples),
        refusals=tuple(log.refusals),
        notes=(*log.errors, *_silent(operations, inside)),
        host=dict(host),
    )


def _lines_inside(placed: Sequence[Placed]) -> dict[Operation, list[Placed]]:
    inside: dict[Operation, list[Placed]] = {}
    for one in placed:
        if one.operation is not None:
            inside.setdefault(one.operation, []).append(one)
    return inside


def from_log(title: str, log: Log) -> Profile:
    """Make a profile from a log only. It has no modules and phases, and only calls of oneDNN and
    MKL."""
    stamps = [line.began for line in log.lines if line.began is not None]
    began = min(stamps, default=0.0)
    clock, spans = 0.0, []
    for line in log.lines:
        start = clock if line.began is None else line.began - began
        clock = start + line.seconds
        spans.append(_of_line(line, start, line.seconds, line.seconds))
    return Profile(
        title=title,
        # Without timestamps, the time between the lines is unknown.
        wall=max((span.end for span in spans), default=0.0) if stamps else 0.0,
        spans=tuple(spans),
        lines=len(log.lines),
        unknown=log.unknown,
        examples=tuple(log.examples),
        refusals=tuple(log.refusals),
        notes=(*log.errors, *_elsewhere(log.lines)),
        host={"log": next((text for text in log.information if "oneDNN v" in text), "")},
    )


def _elsewhere(lines: Sequence[Line]) -> Iterator[str]:
    """Yield a message if lines ran on other engines than the processor."""
    engines = Counter(line.engine for line in lines)
    for engine in sorted(engines.keys() - {"cpu"}):
        yield (
            f"{engines[engine]} of {len(lines)} lines ran on {engine}, not on the processor: "
            "bestof project does not replay them"
        )


def _silent(
    operations: Sequence[Operation], inside: Mapping[Operation, Sequence[Placed]]
) -> Iterator[str]:
    """Yield a message if oneDNN ran and printed nothing. The program may have changed its level."""
    calls = [one for one in operations if one.name == "aten::mkldnn_convolution"]
    silent = sum(one not in inside for one in calls)
    if silent:
        yield (
            f"{silent} of {len(calls)} calls of oneDNN printed no line: the program switched "
            "them off, by torch.backends.mkldnn.verbose or ONEDNN_VERBOSE"
        )


def _main_thread(operations: Sequence[Operation]) -> int:
    """Return the thread whose outermost operations took longest."""
    busy: Counter[int] = Counter()
    for one in operations:
        if one.parent is None:
            busy[one.thread] += one.end - one.start
    return busy.most_common(1)[0][0] if busy else 0


def _steps(
    operations: Sequence[Operation], thread: int, samples: Sequence[int], began: int
) -> list[Step]:
    """Return the steps.

    A step ends with the step of an optimizer that contains STEP_END. Without an optimizer, each
    call of the outermost module is a step.
    """
    calls = [one for one in operations if one.name.startswith(MODULE)]
    # A checkpoint calls outermost modules inside the backward pass, and they have samples, too.
    batches = dict(zip(filter(_is_outermost, calls), samples, strict=False))
    # Calls on other threads may overlap with these.
    models = [
        one
        for one in calls
        if one.thread == thread
        and one.outer is None
        and not one.name.split(":")[1].endswith("Loss")
    ]
    ends = [
        one.parent.end
        for one in operations
        if one.thread == thread and one.name == STEP_END and one.parent is not None
    ]
    if not ends:
        return [
            Step((one.start - began) / 1e9, (one.end - began) / 1e9, batches.get(one, 0))
            for one in models
        ]
    steps = []
    start = min(one.start for one in operations if one.thread == thread)
    for end in ends:
        batch = sum(batches.get(one, 0) for one in models if start <= one.start < end)
        steps.append(Step((start - began) / 1e9, (end - began) / 1e9, batch))
        start = end
    return steps


def _is_outermost(call: Operation) -> bool:
    """Return whether the call of a module is inside of no other module's."""
    around = (one for one in call.enclosing() if one is not call)
    return not any(one.name.startswith(MODULE) for one in around)


def _spans(
    one: Operation,
    lines: Sequence[Placed],
    module: Module,
    phase: str,
    began: int,
    alone: bool,
) -> list[Span]:
    """Return the span of an operation, and of the lines that it issued itself.

    `alone` tells that no line was issued inside of it.
    """
    inner = sum(child.end - child.start for child in one.children if not child.annotation)
    # Ranges inside an operation (modules of a checkpoint) are transparent: their content is inside
    # it too.
    inner += sum(_held(child) for child in one.children if child.annotation)
    free = max(0, one.end - one.start - inner)
    printed = sum(placed.end - placed.start for placed in lines)
    # Calls on several threads at the same time add up to more than their operation took.
    scale = min(1.0, free / printed) if printed else 1.0
    step = one.name.startswith(KERNEL)
    own = Span(
        kind="operation",
        source="bestof" if step else "pytorch",
        name=_STEP if step else one.name,
        start=(one.start - began) / 1e9,
        seconds=(one.end - one.start) / 1e9,
        self_seconds=max(0.0, free - printed) / 1e9,
        thread=one.thread,
        phase=phase,
        module=module[0],
        module_class=module[1],
        operation=_STEP if step else one.name,
        direction="backward" if phase == "backward" else "forward" if phase == "forward" else "",
        dtype=next((_DTYPES.get(name, name) for name in one.dtypes if name in _DTYPES), ""),
        problem=":".join("x".join(map(str, shape)) for shape in one.shapes if shape),
        text=one.call if alone or one.name in CONVOLUTIONS else "",
        depth=sum(not outer.annotation for outer in one.enclosing()) - 1,
    )
    return [own] + [
        _line_span(placed.line, placed, scale, one, module, phase, began) for placed in lines
    ]


def _held(range_: Operation) -> int:
    return sum(
        _held(child) if child.annotation else child.end - child.start for child in range_.children
    )


def _line_span(
    line: Line,
    placed: Placed,
    scale: float,
    owner: Operation | None,
    module: Module,
    phase: str,
    began: int,
) -> Span:
    seconds = (placed.end - placed.start) / 1e9
    return _of_line(
        line,
        (placed.start - began) / 1e9,
        line.seconds,
        seconds * scale,
        thread=0 if owner is None else owner.thread,
        phase=phase,
        module=module[0],
        module_class=module[1],
        operation="" if owner is None else _STEP if owner.name.startswith(KERNEL) else owner.name,
    )


def _of_line(
    line: Line,
    start: float,
    seconds: float,
    self_seconds: float,
    *,
    thread: int = 0,
    phase: str = "other",
    module: str = "",
    module_class: str = "",
    operation: str = "",
) -> Span:
    return Span(
        kind="line",
        source=line.source,
        name=line.primitive,
        start=start,
        seconds=seconds,
        self_seconds=self_seconds,
        thread=thread,
        phase=phase,
        module=module,
        module_class=module_class,
        operation=operation,
        direction=line.direction,
        implementation=line.implementation,
        dtype=line.dtype or dtype_of(line.implementation),
        layout=line.layout,
        problem=line.problem,
        attributes=line.attributes,
        auxiliary=line.auxiliary,
        flops=flops_of(line),
        bytes=bytes_of(line),
        text=line.text,
    )


def _in_steps(spans: Sequence[Span], steps: Sequence[Step]) -> list[Span]:
    """Return the same spans with the numbers of their steps. Both lists are in the order of
    time."""
    result, number = [], 0
    for span in spans:
        while number < len(steps) and span.start >= steps[number].end:
            number += 1
        inside = number < len(steps) and span.start >= steps[number].start
        result.append(replace(span, step=number) if inside else span)
    return result
