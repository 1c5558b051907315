"""Plans on fixed addresses: the bits of `run`, and one clear error for what does not fit."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from bestof import kernels
from bestof.errors import KernelError


def convolution() -> tuple[Any, Any, Any, Any, Any]:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(one, dtype=np.float32) for one in ((1, 6, 7, 5), (9, 3, 3, 5)))
    plan = kernels.Conv2dPlan(x.shape, w.shape, algorithm="convgemm", activation="relu")
    out = np.full(plan.y_shape, np.nan, np.float32)
    return plan, x, kernels.pack_weights(w, "convgemm"), rng.random(9, np.float32), out


def product() -> tuple[Any, Any, Any, Any, Any]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(one, dtype=np.float32) for one in ((6, 5), (5, 9)))
    plan = kernels.MatmulPlan(a.shape, b.shape, algorithm="blocked", activation="relu")
    out = np.full(plan.out_shape, np.nan, np.float32)
    packed = kernels.pack_matrix(b, algorithm="blocked")
    return plan, a, packed, rng.random(9, np.float32), out


BOTH = pytest.mark.parametrize("make", [convolution, product])


@BOTH
def test_bound_calls_have_the_bits_of_run(make: Any) -> None:
    plan, x, weights, bias, out = make()
    plan.run(x.ctypes.data, weights, out.ctypes.data, bias.ctypes.data, 0)
    right = out.copy()
    bound = plan.bind(x.ctypes.data, weights, out.ctypes.data, bias.ctypes.data)
    out[...] = np.nan
    del plan, weights  # they are kept
    gc.collect()
    assert bound() in (None, True)
    np.testing.assert_array_equal(out, right)


@BOTH
def test_what_does_not_fit_is_refused(make: Any) -> None:
    plan, x, _, bias, out = make()
    for given in (5, x, None):
        with pytest.raises(KernelError, match="addresses: expected"):
            plan.bind(x.ctypes.data, given, out.ctypes.data)
    for given in ("x", x, np.zeros(2)):
        with pytest.raises(KernelError, match="addresses: expected"):
            plan.bind(given, make()[2], out)
    with pytest.raises(KernelError, match="addresses: expected"):
        plan.bind("x", make()[2], out.ctypes.data, bias.ctypes.data)


def test_weights_of_another_plan_are_refused() -> None:
    plan, x, _, _, out = convolution()
    other = kernels.pack_weights(np.zeros((9, 1, 1, 5), np.float32), "convgemm")
    with pytest.raises(KernelError, match="expected weights packed for convgemm"):
        plan.bind(x.ctypes.data, other, out.ctypes.data)
    with pytest.raises(KernelError, match="expected two that are not 0"):
        plan.bind(0, convolution()[2], out.ctypes.data)
    plan, a, _, _, out = product()
    other = kernels.pack_matrix(np.zeros((5, 8), np.float32), algorithm="blocked")
    with pytest.raises(KernelError, match="expected a matrix packed for blocked"):
        plan.bind(a.ctypes.data, other, out.ctypes.data)


def test_another_instruction_set_is_refused() -> None:
    """A convolution's plan keeps the kernels that it was made of."""
    plan, x, weights, _, out = product()
    bound = plan.bind(x.ctypes.data, weights, out.ctypes.data)
    used = kernels.isa()
    others = [one for one in kernels.isas() if one != used]
    if not others:
        pytest.skip("this processor has one instruction set")
    kernels.use_isa(others[0])
    try:
        with pytest.raises(KernelError, match=f"on {others[0]}"):
            bound()
    finally:
        kernels.use_isa(used)
    bound()
