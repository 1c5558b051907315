"""Our own side: every algorithm of the native kernels, and what the machine could do at most."""

from __future__ import annotations

from contextlib import suppress

from bestof import kernels
from bestof.bench.peers.case import Case, Operands, aligned, samples_of
from bestof.bench.peers.run import Run
from bestof.errors import KernelError

_DIRECTIONS = {
    "forward": "forward",
    "input gradient": "backward_input",
    "weight gradient": "backward_weight",
}


def version() -> str:
    """What is measured."""
    return f"bestof, {kernels.isa()}"


def prepare(case: Case) -> dict[str, Run]:
    """A run for each algorithm that applies."""
    operands = Operands.of(case)
    geometry = {
        "stride": case.stride,
        "padding": case.padding,
        "dilation": case.dilation,
        "groups": case.groups,
        "direction": _DIRECTIONS[case.direction],
    }
    rows = kernels.conv2d_algorithms(case.x_shape, case.w_shape, **geometry)  # type: ignore[arg-type]
    return {name: _run(case, operands, name, row, geometry) for name, row in rows.items()}


def _run(case: Case, operands: Operands, name: str, row: kernels.Algorithm, geometry: dict[str, object]) -> Run:
    forward = case.direction == "forward"
    plan = kernels.Conv2dPlan(
        case.x_shape,
        case.w_shape,
        algorithm=name,
        activation="relu" if forward else None,
        **geometry,  # type: ignore[arg-type]
    )
    x, w, grad = (array.ctypes.data for array in (operands.x, operands.w, operands.grad))
    first, second = (x, w) if forward else (grad, w if case.direction == "input gradient" else x)
    out = aligned({"forward": case.y_shape, "input gradient": case.x_shape}.get(case.direction, case.w_shape))
    address, bias = out.ctypes.data, operands.bias.ctypes.data if forward else 0
    weights: int | kernels.PackedWeights = second
    if forward:
        with suppress(KernelError):  # an algorithm that takes the weights as they are
            weights = kernels.pack_weights(operands.w, name, groups=case.groups)

    def call() -> None:
        plan.run(first, weights, address, bias)

    return Run(call, lambda: samples_of(out), row.flops, row.scratch_bytes, (operands, out))
