"""Replays whole convolutions of PyTorch by the alternatives that `enable` chooses from.

Lines show what oneDNN computed. `enable` replaces an operation with all of its lines: the
convolution and its conversions of the layout. So the operation is replayed on tensors with the
recorded strides, and the time of an alternative includes its own conversions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from bestof.profile.projection.aten_call import AtenCall
from bestof.profile.projection.measured import Measured
from bestof.profile.span import Span
from bestof.profile.steady import Steady
from bestof.profile.stopwatch import Times, least, times_of
from bestof.profile.timeline.operation import CONVOLUTIONS
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.direction import Pass
from bestof.torch.ops.convolution.passes import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from bestof.torch.ops.convolution.problem import ConvProblem
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv, pytorch_conv

# The least seconds of one measurement. Two calls are always made.
_LEAST = 0.004
# A way that takes this many times the least hot time is not run cold.
_FAR = 1.5
_DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def convolutions_of(spans: Sequence[Span]) -> list[list[Span]]:
    """Return the spans of each convolution: the operation, then what runs inside of it.

    Spans are in the order of time.
    """
    open_: dict[int, list[Span]] = {}
    found = []
    for span in spans:
        own = open_.get(span.thread)
        if own is not None and span.kind == "operation" and span.depth <= own[0].depth:
            del open_[span.thread]
            own = None
        if own is not None:
            own.append(span)
        elif span.kind == "operation" and span.name in CONVOLUTIONS and span.text:
            open_[span.thread] = [span]
            found.append(open_[span.thread])
    return found


def without_convolutions(steady: Steady, texts: Set[str]) -> Steady:
    """Return a step without the spans of the convolutions with these calls."""
    gone = {
        id(span)
        for spans in convolutions_of(steady.spans)
        if spans[0].text in texts
        for span in spans
    }
    return replace(steady, spans=tuple(one for one in steady.spans if id(one) not in gone))


@dataclass(frozen=True, slots=True)
class EnabledConvolution:
    """A call of `aten::convolution` or `aten::convolution_backward` by its recorded arguments."""

    call: AtenCall

    def measure(self, seconds: float) -> Iterator[Measured]:
        """Yield the times of PyTorch's operation and, if `enable` knows it, of the best
        alternatives.

        These take about `seconds`. The best alternative of a pass is that of the least cold time.
        Raises ProfileError if PyTorch's operation cannot be called.
        """
        moved = max(self.call.bytes, 1)
        passes = self._passes()
        share = seconds / (1 + sum(len(ways) for _, ways in passes))
        same = times_of(self.call.bind, moved, max(share, _LEAST))
        yield Measured("same", "PyTorch's operation", same.hot, same.cold)
        best = [_best(name, ways, moved, share) for name, ways in passes]
        if best and all(best):
            found = [one for one in best if one is not None]
            # Without room for cold runs, the hot time stands for both.
            colds = [times.hot if times.cold is None else times.cold for _, times in found]
            yield Measured(
                *("bestof", "; ".join(name for name, _ in found)),
                *(sum(times.hot for _, times in found), sum(colds)),
            )

    def _passes(self) -> list[tuple[str, list[_Way]]]:
        """Return the ways of each wanted pass, or nothing for a call that `enable` leaves alone."""
        backward = self.call.name == CONVOLUTIONS[1]
        values = [one.value for one in self.call.arguments]
        geometry = values[4:10] if backward else values[3:9]
        tensors = self._tensors(3)
        if len(geometry) < 6 or not all(isinstance(one, Tensor) for one in tensors[:2]):
            return []
        x, weight = tensors[1:] if backward else tensors[:2]
        stride, padding, dilation, transposed, _, groups = geometry
        plain = (x.dim(), weight.dim(), bool(transposed)) == (4, 4, False)
        if not plain or x.dtype not in _DTYPES or weight.dtype is not x.dtype:
            return []
        stride, padding, dilation = (
            one if len(one) == 2 else [*one, *one] for one in (stride, padding, dilation)
        )
        bias = not backward and tensors[2] is not None
        grad = tensors[0] if backward else None
        problem = ConvProblem.of(x, weight, bias, stride, padding, dilation, groups, grad)
        if not backward:
            return [("forward", self._ways(FORWARD, problem, (0, 1, 2)))]
        wanted = zip((INPUT_GRADIENT, WEIGHT_GRADIENT), ((0, 2), (0, 1)), values[10], strict=False)
        passes: list[tuple[str, list[_Way]]] = [
            (operation.direction, self._ways(operation, problem, places))
            for operation, places, needed in wanted
            if needed
        ]
        if values[10][2]:
            passes.append(("bias gradient", [("sum", self._bias_gradient)]))
        return passes

    def _bias_gradient(self) -> Callable[[], None]:
        (gradient,) = self._tensors(1)

        def run() -> None:
            gradient.sum((0, 2, 3))

        return run

    def _tensors(self, count: int) -> list[Any]:
        # An argument that is not given has no kind.
        given = self.call.arguments[:count]
        return [one.tensors(False, 0) if one.kind else None for one in given]

    def _ways(
        self, operation: Conv2dPass, problem: ConvProblem, places: Sequence[int]
    ) -> list[_Way]:
        promising = operation.promising(problem)
        kernels = pytorch_conv()
        # All ways read the same sets of operands, because making them takes longer than a call.
        made: list[list[Any]] = []

        def bind(one: Pass, number: Iterator[int]) -> Callable[[], None]:
            place = next(number)
            if place == len(made):
                tensors = self._tensors(3)
                made.append([tensors[each] for each in places])
            return partial(_run, one, kernels, made[place], problem)

        return [
            (one.name, partial(bind, one, count()))
            for one in operation.rows
            if one.name in promising
        ]


# The name of an alternative, and a function that binds it to the next set of operands.
_Way = tuple[str, Callable[[], Callable[[], None]]]


def _run(
    one: Pass, kernels: PyTorchConv, operands: Sequence[Tensor | None], problem: ConvProblem
) -> None:
    with torch.no_grad():
        one.function(kernels, problem, *operands)


def _best(
    direction: str, ways: Sequence[_Way], moved: int, seconds: float
) -> tuple[str, Times] | None:
    """Return the fastest way with its times, or None if all failed."""
    found: list[tuple[float, str, Times]] = []
    fastest = float("inf")
    for name, bind in ways:
        try:
            run = bind()
            run()  # this touches pages and loads code
            hot = least([run], seconds / 4)
            fastest = min(fastest, hot)
            if hot <= _FAR * fastest:
                times = times_of(bind, moved, max(seconds, _LEAST))
                found.append((times.hot if times.cold is None else times.cold, name, times))
        except RuntimeError:  # PyTorch raises this, also without memory
            continue
    if not found:
        return None
    _, name, times = min(found, key=lambda one: one[:2])
    return f"{direction} by {name}", times
