"""One step of the optimizer LAMB for one tensor."""

from __future__ import annotations

import math

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels.array import Array, check_detached
from bestof.kernels.pair import integer_of, threads_of


def lamb_step(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 1e-2,
    maximize: bool = False,
    threads: int | None = None,
) -> None:
    """Update a tensor and its moments in place (You et al., 2020, algorithm 2).

    m = beta1 m + (1 - beta1) grad, v = beta2 v + (1 - beta2) grad^2, at most the largest float32;
    u = m / (1 - beta1^step) / (sqrt(v / (1 - beta2^step)) + eps) + weight_decay param;
    param = param - lr |param| / |u| u, where |param| / |u| is 1 if either is 0.

    param, grad, exp_avg (m), exp_avg_sq (v): float32 of one shape, C-contiguous, on the CPU, apart
    from one another. step: from 1 on. The norms are taken in float64, and do not depend on the
    number of threads. Raises KernelError before anything is written.
    """
    count = integer_of(step, "step")
    if count < 1:
        raise KernelError(f"step: expected at least 1; got {count}")
    first, second = betas
    for name, beta in (("betas[0]", first), ("betas[1]", second)):
        if not 0.0 <= beta < 1.0:
            raise KernelError(f"{name}: expected 0 <= beta < 1; got {beta!r}")
    for name, number in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
        if not number >= 0.0:
            raise KernelError(f"{name}: expected a number of at least 0; got {number!r}")
    check_detached(param=param, grad=grad, exp_avg=exp_avg, exp_avg_sq=exp_avg_sq)
    short = 1.0 - first**count
    _native.lamb(
        param,
        grad,
        exp_avg,
        exp_avg_sq,
        first,
        first - 1.0 if maximize else 1.0 - first,
        second,
        1.0 - second,
        short / math.sqrt(1.0 - second**count),
        short * eps,
        weight_decay,
        lr,
        threads_of(threads),
    )
