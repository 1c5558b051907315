"""The native kernels: every algorithm of bestof."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from bestof import kernels
from bestof.bench.convolution.case import Array, Case, Operands, aligned, samples_of
from bestof.bench.convolution.run import Run

_DIRECTIONS = {
    "forward": "forward",
    "input gradient": "backward_input",
    "weight gradient": "backward_weight",
}


def version() -> str:
    return f"bestof, {kernels.isa()}"


def prepare(case: Case) -> dict[str, Run]:
    """Return a run for each algorithm that applies to the case.

    A bfloat16 case also has the algorithms that round to bfloat16, and runs on tensors of bfloat16.
    Their `work` counts half if one instruction does twice as many of their multiply-adds as of
    float32.
    """
    operands = Operands.of(case)
    geometry = {
        "stride": case.stride,
        "padding": case.padding,
        "dilation": case.dilation,
        "groups": case.groups,
        "direction": _DIRECTIONS[case.direction],
    }
    runs = {}
    for dtype in ("float32", "bfloat16")[: 1 if case.dtype == "float32" else 2]:
        shapes = case.x_shape, case.w_shape
        rows = kernels.conv2d_algorithms(*shapes, dtype=dtype, **geometry)  # type: ignore[arg-type]
        for name, row in rows.items():
            if case.dtype == "bfloat16" or row.algorithm.rounds == "nothing":
                label = name if dtype == "float32" else f"{name}, bfloat16"
                runs[label] = _run(case, operands, name, row, {**geometry, "dtype": dtype})
    return runs


def _run(
    case: Case, operands: Operands, name: str, row: kernels.Promise, options: dict[str, object]
) -> Run:
    forward, half = case.direction == "forward", options["dtype"] == "bfloat16"
    plan = kernels.Conv2dPlan(
        case.x_shape,
        case.w_shape,
        algorithm=name,
        activation="relu" if forward else None,
        **options,  # type: ignore[arg-type]
    )
    x = to_bfloat16(operands.x) if half else operands.x
    first, second = (x, operands.w) if forward else (operands.grad, operands.w)
    if case.direction == "weight gradient":
        second = operands.x
    out = aligned(
        {"forward": case.y_shape, "input gradient": case.x_shape}.get(case.direction, case.w_shape)
    )
    addresses = first.ctypes.data, out.ctypes.data, operands.bias.ctypes.data if forward else 0
    weights: int | kernels.PackedWeights = second.ctypes.data
    if forward and row.packs:
        weights = kernels.pack_weights(operands.w, name, groups=case.groups)

    def call() -> None:
        plan.run(addresses[0], weights, addresses[1], addresses[2])

    def samples() -> list[float]:
        return samples_of(_from_bfloat16(out) if half else out)

    twice = row.algorithm.rounds == "both" and not row.algorithm.emulated
    return Run(
        call,
        samples,
        row.flops / 2 if twice else row.flops,
        row.scratch_bytes,
        (operands, first, out),
    )


def to_bfloat16(values: Array) -> NDArray[numpy.uint16]:
    """Return the upper halves of the values: they cost as much time as rounded ones.

    The error is within twice that of rounding.
    """
    return (values.view(numpy.uint32) >> 16).astype(numpy.uint16)


def _from_bfloat16(out: Array) -> Array:
    """Return the bfloat16 values in the first half of the memory of `out`, in its shape."""
    bits = out.reshape(-1).view(numpy.uint16)[: out.size]
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32).reshape(out.shape)
