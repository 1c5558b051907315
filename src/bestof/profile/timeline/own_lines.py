"""Makes lines for bestof's own kernels, in the form of oneDNN's, from PyTorch's profile.

A settled convolution runs in C++ below `aten::convolution` or `aten::convolution_backward`. The
profiler knows the operation's sizes, strides and pads, and its self time is that of the kernel. The
algorithm is the decision of the selector. A step of a plan is a range that carries all of this in
its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bestof.profile.timeline.operation import KERNEL, Operation
from bestof.profile.timeline.placement import Placed
from bestof.profile.verbose.descriptor import Descriptor
from bestof.profile.verbose.line import Line

# From a direction and a problem in bestof's notation to the name of the algorithm that was chosen.
Decisions = Mapping[tuple[str, str], str]

_FORWARD, _BACKWARD = "aten::convolution", "aten::convolution_backward"
# The passes of the backward operation in the order of its mask: oneDNN's name, then bestof's.
_PASSES = (("backward_data", "input gradient"), ("backward_weights", "weight gradient"))
_DTYPES = {"float": "f32", "double": "f64", "c10::BFloat16": "bf16", "c10::Half": "f16"}


def own_lines(
    operations: Sequence[Operation], placed: Sequence[Placed], decisions: Decisions
) -> list[Placed]:
    """Return a line for each operation that a kernel of bestof answered."""
    seen: dict[Operation, set[str]] = {}
    for printed in placed:
        if printed.operation is not None and printed.line.primitive == "convolution":
            for around in printed.operation.enclosing():
                seen.setdefault(around, set()).add(printed.line.direction)
    found = []
    for one in operations:
        line = _of_step(one) if one.name.startswith(KERNEL) else None
        if line is None and decisions and one.name in (_FORWARD, _BACKWARD):
            line = _of_convolution(one, seen.get(one, set()), decisions)
        if line is not None:
            found.append(Placed(line, one.start, one.start + _free(one), one))
    return found


def _free(one: Operation) -> int:
    """Return the nanoseconds that no inner operation explains."""
    return max(0, one.end - one.start - sum(child.end - child.start for child in one.children))


def _geometry(one: Operation) -> tuple[Any, ...] | None:
    """Return shapes of input and weights, stride, padding, dilation and groups.

    Return None if the operation is not a 2-D convolution.
    """
    if len(one.concrete) < 9 or len(one.shapes) < 3:
        return None
    backward = one.name == _BACKWARD
    x, weight = (one.shapes[1], one.shapes[2]) if backward else (one.shapes[0], one.shapes[1])
    stride, padding, dilation, transposed, _, groups = one.concrete[4 if backward else 3 :][:6]
    if len(x) != 4 or len(weight) != 4 or transposed:
        return None
    return x, weight, stride, padding, dilation, groups


def operation_notation(one: Operation) -> str | None:
    """Return the problem of a convolution in bestof's notation, or None for another operation."""
    geometry = _geometry(one)
    return None if geometry is None else _notation(*geometry)


def _of_convolution(one: Operation, seen: set[str], decisions: Decisions) -> Line | None:
    # If inner operations took most of the time, PyTorch's kernels ran, and these have spans.
    geometry = _geometry(one)
    if geometry is None or 2 * _free(one) < one.end - one.start:
        return None
    if one.name == _BACKWARD:
        mask = one.concrete[10] if len(one.concrete) > 10 else [True, True, True]
        passes = [
            names
            for names, wanted in zip(_PASSES, mask[:2], strict=True)
            if wanted and names[0] not in seen
        ]
    else:
        passes = [("forward_training", "forward")]
    if not passes:
        return None
    notation = _notation(*geometry)
    chosen = [decisions.get((name, notation), "native") for _, name in passes]
    directions = "+".join(direction for direction, _ in passes)
    dtype = _DTYPES.get(one.dtypes[0] if one.dtypes else "", "f32")
    name = "+".join(dict.fromkeys(chosen))
    return _line(name, directions, dtype, _problem(*geometry), _free(one) / 1e9)


def _of_step(one: Operation) -> Line | None:
    """Return the line of a plan's step, from the name `bestof.kernel:ALGORITHM:PROBLEM:MODULE`.

    Return None if operations of PyTorch compute the step.
    """
    algorithm, problem, _ = one.name[len(KERNEL) :].split(":", 2)
    if 2 * _free(one) < one.end - one.start:
        return None
    return _line(algorithm, "forward_inference", "f32", problem, _free(one) / 1e9)


def _line(algorithm: str, direction: str, dtype: str, problem: str, seconds: float) -> Line:
    primitive = "convolution" if "kh" in problem else algorithm
    convolution = primitive == "convolution"
    roles = ("src", "wei", "dst") if convolution else ()
    descriptors = tuple(Descriptor(role, dtype, "", "blocked", "", "") for role in roles)
    words = " ".join(f"{role}:{dtype}::blocked:::" for role in roles)
    return Line(
        source="bestof",
        primitive=primitive,
        implementation=f"bestof:{algorithm}",
        direction=direction,
        descriptors=descriptors,
        attributes="",
        auxiliary="",
        problem=problem,
        seconds=seconds,
        text=f"bestof_verbose,v1,primitive,exec,cpu,{primitive},bestof:{algorithm},{direction},"
        f"{words},,,{problem},{seconds * 1e3:g}",
    )


def _pair(values: Sequence[int]) -> tuple[int, int]:
    return values[0], values[-1]


def _notation(
    x: Sequence[int], weight: Sequence[int], stride: Any, padding: Any, dilation: Any, groups: int
) -> str:
    from bestof.torch.ops.convolution.problem import ConvProblem  # noqa: PLC0415  imports torch

    return ConvProblem(
        tuple(x),  # type: ignore[arg-type]  # four numbers each
        tuple(weight),  # type: ignore[arg-type]
        stride=_pair(stride),
        padding=_pair(padding),
        dilation=_pair(dilation),
        groups=groups,
    ).notation


def _problem(
    x: Sequence[int], weight: Sequence[int], stride: Any, padding: Any, dilation: Any, groups: int
) -> str:
    """Return the problem as oneDNN writes it."""
    names: list[str] = []
    for place, axis in enumerate("hw"):
        size, window = x[2 + place], weight[2 + place]
        step, pad, spread = _pair(stride)[place], _pair(padding)[place], _pair(dilation)[place]
        results = (size + 2 * pad - spread * (window - 1) - 1) // step + 1
        names.append(
            f"i{axis}{size}o{axis}{results}k{axis}{window}"
            f"s{axis}{step}d{axis}{spread - 1}p{axis}{pad}"
        )
    head = f"g{groups}" if groups > 1 else ""
    return f"{head}mb{x[0]}_ic{x[1]}oc{weight[0]}_{names[0]}_{names[1]}"


def step_problem(problem: Any) -> str:
    """Return the problem of a plan's convolution (a `ConvProblem`) as oneDNN writes it."""
    return _problem(
        problem.input_shape,
        problem.weight_shape,
        problem.stride,
        problem.padding,
        problem.dilation,
        problem.groups,
    )


def decisions_of(summarise: Callable[[], Any]) -> dict[tuple[str, str], str]:
    """Return the chosen algorithm of each pass and problem, from `bestof.torch.summary`."""
    chosen: dict[tuple[str, str], list[str]] = {}
    for row in summarise().passes:
        if row.chosen is not None:
            names = chosen.setdefault((row.name, row.problem.split()[0]), [])
            if row.chosen not in names:
                names.append(row.chosen)
    # One geometry in several layouts may have several decisions.
    return {key: "|".join(names) for key, names in chosen.items()}
