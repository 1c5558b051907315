"""Measure every alternative of a 2-D convolution, as PyTorch programs choose from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from bestof.bench.convolution.pass_times import AlternativeTime, PassTimes
from bestof.bench.quartiles import spread
from bestof.errors import InvalidArgument, TorchError
from bestof.selection.policies import Race
from bestof.torch.dispatch.overrides import operation_override
from bestof.torch.ops.convolution.conv2d_pass import Conv2dPass
from bestof.torch.ops.convolution.direction import DIRECTIONS, Pass
from bestof.torch.ops.convolution.passes import FORWARD, INPUT_GRADIENT, PASSES
from bestof.torch.ops.convolution.problem import ConvProblem, parse_conv
from bestof.torch.ops.convolution.pytorch_conv import PyTorchConv, pytorch_conv


class _Operands(NamedTuple):
    input: Tensor
    weight: Tensor
    grad_output: Tensor


def measure_conv(
    notation: str,
    passes: Sequence[str] = DIRECTIONS,
    *,
    repeats: int = 7,
    channels_last: bool = False,
    threads: int | None = None,
    clock: Callable[[], float] = perf_counter,
) -> tuple[PassTimes, ...]:
    """Measure every alternative of these passes of a float32 convolution; return a result for each
    pass.

    `notation` names the convolution, such as `i64x56x56,k64x3x3,b8,p1`. After one call each that is
    not counted, the alternatives are called in turn, `repeats` times, so that all of them meet the
    same state of the machine. The chosen one is what `Race`, the default policy, makes of these
    times. `threads` are PyTorch's; None keeps their number. `clock` returns seconds.

    Raises InvalidArgument for a notation or a number that cannot be used, and TorchError if
    PyTorch's own kernel fails.
    """
    for name in passes:
        if name not in DIRECTIONS:
            raise InvalidArgument(
                f"there is no pass {name!r} of a convolution; take {', '.join(DIRECTIONS)}"
            )
    if repeats < 1:
        raise InvalidArgument(f"repeats: expected at least 1; got {repeats}")
    if threads is not None and threads < 1:
        raise InvalidArgument(f"threads: expected at least 1; got {threads}")
    with _threads(threads), torch.no_grad():
        geometry = parse_conv(notation)
        override = operation_override(FORWARD.name)
        kernels = pytorch_conv() if override is None else override.original
        operands = _operands(geometry, channels_last)
        return tuple(
            _measure_pass(operation, geometry, operands, kernels, repeats, clock)
            for operation in PASSES
            if operation.direction in passes
        )


def _operands(geometry: ConvProblem, channels_last: bool) -> _Operands:
    """Return operands of a normal distribution, always the same ones: no kernel has a special case
    for them.
    """
    generator = torch.Generator().manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    shapes = geometry.input_shape, geometry.weight_shape, geometry.output_shape
    try:
        return _Operands(
            *(
                torch.randn(shape, generator=generator).contiguous(memory_format=layout)
                for shape in shapes
            )
        )
    except RuntimeError as error:
        raise TorchError(
            f"convolution {geometry.notation}: the operands do not fit into the memory: {error}"
        ) from error


def _measure_pass(
    operation: Conv2dPass,
    geometry: ConvProblem,
    operands: _Operands,
    kernels: PyTorchConv,
    repeats: int,
    clock: Callable[[], float],
) -> PassTimes:
    input, weight, grad_output = operands
    forward = operation is FORWARD
    problem = ConvProblem.of(
        input,
        weight,
        False,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        geometry.groups,
        None if forward else grad_output,
    )
    samples, failed = _sampled(operation, operands, problem, kernels, repeats, clock)
    as_is = operation.rows[0].name
    if as_is in failed:
        raise TorchError(
            f"{operation.direction} of {problem}: PyTorch itself fails: {failed[as_is]}"
        )
    measured = {name: times for name, times in samples.items() if name not in failed}
    chosen = _chosen(operation.rows, measured, repeats)
    return PassTimes(
        operation.direction,
        str(problem),
        problem.threads,
        problem.flops,
        tuple(
            _time(
                row.name,
                measured.get(row.name),
                measured[as_is],
                row.name == chosen,
                failed.get(row.name),
            )
            for row in operation.rows
        ),
    )


def _sampled(
    operation: Conv2dPass,
    operands: _Operands,
    problem: ConvProblem,
    kernels: PyTorchConv,
    repeats: int,
    clock: Callable[[], float],
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the seconds of each alternative that applies, and the reasons of those that failed."""
    input, weight, grad_output = operands
    arguments: tuple[Tensor | None, ...] = (input, weight, None)
    if operation is not FORWARD:
        arguments = (grad_output, weight if operation is INPUT_GRADIENT else input)
    samples: dict[str, list[float]] = {one.name: [] for one in operation.applying(problem)}
    failed: dict[str, str] = {}
    for repeat in range(repeats + 1):
        for alternative in operation.rows:
            if alternative.name not in samples or alternative.name in failed:
                continue
            try:
                started = clock()
                alternative.function(kernels, problem, *arguments)
                seconds = clock() - started
            except RuntimeError as error:  # PyTorch raises this, also without memory
                failed[alternative.name] = " ".join(f"{type(error).__name__}: {error}".split())
            else:
                if repeat:
                    samples[alternative.name].append(seconds)
    return samples, failed


def _time(
    name: str, times: list[float] | None, as_is: list[float], chosen: bool, reason: str | None
) -> AlternativeTime:
    if times is None:
        return AlternativeTime(name, False, reason=reason)
    seconds = median(times)
    ratio = median(as_is) / seconds if seconds > 0 else None
    return AlternativeTime(name, chosen, seconds, spread(times), ratio)


def _chosen(
    alternatives: Sequence[Pass], measured: dict[str, list[float]], repeats: int
) -> str | None:
    names = [alternative.name for alternative in alternatives]
    search = Race(max_trials=repeats).start(names)
    for position, name in enumerate(names):
        if name not in measured:
            search.drop(position)
    for repeat in range(repeats):
        for position, name in enumerate(names):
            if name in measured:
                search.tell(position, measured[name][repeat])
    position_chosen = search.winner if search.winner is not None else search.best
    return None if position_chosen is None else names[position_chosen]


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
