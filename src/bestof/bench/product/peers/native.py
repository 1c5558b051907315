"""The native products: every algorithm of bestof, b packed in the call and beforehand."""

from __future__ import annotations

from bestof import kernels
from bestof.bench.convolution.case import aligned, samples_of
from bestof.bench.convolution.run import Run
from bestof.bench.product.case import Case, Operands


def version() -> str:
    return f"bestof, {kernels.isa()}"


def prepare(case: Case) -> dict[str, Run]:
    """Return a run for each algorithm of float32, and one on packed columns if it packs.

    An algorithm whose products this processor lacks is the same code as another one.
    """
    operands = Operands.of(case)
    promises = kernels.matmul_algorithms(operands.a.shape, operands.b.shape)
    runs = {}
    for name, promise in promises.items():
        if promise.algorithm.relaxed or promise.algorithm.emulated:
            continue
        runs[name] = _run(operands, name, promise, operands.b.ctypes.data)
        if promise.packs:
            packed = kernels.pack_matrix(operands.b, algorithm=name)
            runs[f"{name}, packed"] = _run(operands, name, promise, packed)
    return runs


def _run(
    operands: Operands,
    name: str,
    promise: kernels.MatmulPromise,
    b: int | kernels.PackedMatrix,
) -> Run:
    out = aligned((operands.a.shape[0], operands.b.shape[1]))
    plan = kernels.MatmulPlan(
        operands.a.shape,
        operands.b.shape,
        a_strides=[stride // 4 for stride in operands.a.strides],
        b_strides=[stride // 4 for stride in operands.b.strides],
        algorithm=name,
    )
    a, c = operands.a.ctypes.data, out.ctypes.data
    return Run(
        lambda: plan.run(a, b, c),
        lambda: samples_of(out),
        promise.flops,
        promise.scratch_bytes,
        (operands, out),
    )
