"""Calls of matrix products: packed matrices, plans, the C call, and what is refused."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from test_matmul import Matrix, Wanted, check, draw, poisoned, stored, wanted_of

from bestof import kernels
from bestof.errors import KernelError
from bestof.kernels import addresses


def test_packed_matrices() -> None:
    b = draw(11).standard_normal((100, 70), np.float32)
    packed = kernels.pack_matrix(b.T.copy().T)
    assert (packed.algorithm, packed.isa, packed.shape) == ("blocked", kernels.isa(), (100, 70))
    assert packed.nbytes >= b.nbytes
    a = np.ones((5, 100), np.float32)
    with pytest.raises(KernelError, match="expected one that packs"):
        kernels.matmul(a, packed, algorithm="few_rows")
    with pytest.raises(KernelError, match=r"shapes: expected a \[M, K\]"):
        kernels.matmul(np.ones((5, 70), np.float32), packed)
    with pytest.raises(KernelError, match="expected one that packs"):
        kernels.pack_matrix(b, algorithm="few_rows")
    others = [name for name in kernels.isas() if name != kernels.isa()]
    for other in others[-1:]:
        before = kernels.isa()
        kernels.use_isa(other)
        with pytest.raises(KernelError, match="pack again"):
            kernels.matmul(a, packed)
        kernels.use_isa(before)


def test_plans() -> None:
    random = draw(12)
    a, b = stored(random, "T", 20, 30), stored(random, "T", 30, 40)
    bias, residual = (random.standard_normal(s, np.float32) for s in (40, (20, 40)))
    plan = kernels.MatmulPlan(
        (20, 30),
        (30, 40),
        a_strides=(1, 20),
        b_strides=(1, 30),
        activation="relu",
        threads=2,
    )
    assert (plan.algorithm, plan.out_shape) == ("blocked", (20, 40))
    out = poisoned(20, 40)
    addresses = out.ctypes.data, bias.ctypes.data, residual.ctypes.data
    factor = random.standard_normal((20, 40), np.float32)
    plan.run(a.ctypes.data, b.ctypes.data, *addresses)
    wanted = kernels.matmul(a, b, bias, residual=residual, activation="relu")
    np.testing.assert_array_equal(out, wanted)
    out[:] = np.nan
    plan.run(a.ctypes.data, kernels.pack_matrix(b), *addresses)
    check(out, Wanted(wanted.astype(np.float64), wanted_of(a, b, bias, residual).magnitude), 30)
    plan.run(a.ctypes.data, b.ctypes.data, *addresses, factor.ctypes.data)
    np.testing.assert_array_equal(out, wanted * factor)
    for wrong in ((a, 1, 2), (1, "b", 2), (-1, 2, 3)):
        with pytest.raises(KernelError, match="addresses: expected integers"):
            plan.run(*wrong)  # type: ignore[arg-type]
    with pytest.raises(KernelError, match="packed for blocked"):
        plan.run(a.ctypes.data, kernels.pack_matrix(b[:, :7]), *addresses)
    few = kernels.MatmulPlan((3, 30), (30, 40))
    assert few.algorithm == "few_rows"
    with pytest.raises(KernelError, match="packed for few_rows"):
        few.run(a.ctypes.data, kernels.pack_matrix(b), *addresses)


class CCalls(ctypes.Structure):
    """The table of native/bindings/c_calls.h, as far as it is called here."""

    _fields_ = (("run", ctypes.CFUNCTYPE(ctypes.c_bool, *[ctypes.c_void_p] * 4)),)


def test_the_c_call() -> None:
    random = draw(13)
    a, b = stored(random, "N", 5, 30), stored(random, "T", 30, 40)
    bias = random.standard_normal(40, np.float32)
    plan = kernels.MatmulPlan(
        a.shape, b.shape, b_strides=(1, 30), algorithm="blocked", activation="relu"
    )
    packed, other = kernels.pack_matrix(b), kernels.pack_matrix(b[:, :9])
    run = CCalls.from_address(addresses.c_calls()).run
    address = addresses.plan_address(plan)

    def multiply(added: int, columns: int, kept: int | None, out: np.ndarray) -> bool:
        operands = (ctypes.c_void_p * 3)(added, a.ctypes.data, columns)
        results = (ctypes.c_void_p * 1)(out.ctypes.data)
        return bool(run(address, operands, results, kept))

    wanted = kernels.matmul(a, b, bias, activation="relu", algorithm="blocked")
    for columns, kept in ((b.ctypes.data, None), (0, addresses.packed_address(packed))):
        out = poisoned(5, 40)
        assert multiply(bias.ctypes.data, columns, kept, out)
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)
    out[:] = np.nan
    assert not multiply(0, 0, addresses.packed_address(other), out)
    isa = kernels.isa()
    for name in kernels.isas():
        kernels.use_isa(name)
        assert multiply(0, b.ctypes.data, None, poisoned(5, 40)) is (name == isa)
    kernels.use_isa(isa)
    assert np.isnan(out).all()


def ones(*shape: int) -> Matrix:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("message", "arguments", "options"),
    [
        ("a: expected 2 or 3 dimensions", (ones(3), ones(3, 4)), {}),
        ("b: expected 2 or 3 dimensions", (ones(2, 3), ones(1, 1, 3, 4)), {}),
        ("shapes: expected a", (ones(2, 3), ones(4, 5)), {}),
        ("of one batch", (ones(2, 2, 3), ones(3, 3, 5)), {}),
        ("a: expected float32", (ones(2, 3).astype(np.float64), ones(3, 4)), {}),
        ("b: expected float32", (ones(2, 3), ones(3, 4).astype(np.int32)), {}),
        ("b: expected an array", (ones(2, 3), [1.0]), {}),
        ("dtype: expected", (ones(2, 3), ones(3, 4)), {"dtype": "float16"}),
        ("algorithm: expected", (ones(2, 3), ones(3, 4)), {"algorithm": "fast"}),
        ("algorithm: expected", (ones(2, 3), ones(3, 4)), {"algorithm": 3}),
        ("algorithm: expected", (ones(17, 3), ones(3, 17)), {"algorithm": "few_rows"}),
        ("algorithm: expected", (ones(1, 16385), ones(16385, 1)), {"algorithm": "few_rows"}),
        ("activation: expected", (ones(2, 3), ones(3, 4)), {"activation": "tanh"}),
        ("threads: expected", (ones(2, 3), ones(3, 4)), {"threads": -1}),
        ("bias: expected shape", (ones(2, 3), ones(3, 4), ones(3)), {}),
        ("bias: expected a C-contiguous", (ones(2, 3), ones(3, 4), ones(8)[::2]), {}),
        ("residual: expected shape", (ones(2, 3), ones(3, 4)), {"residual": ones(2, 3)}),
        ("residual: expected the strides", (ones(2, 3), ones(3, 4)), {"residual": ones(4, 2).T}),
        ("factor: expected shape", (ones(2, 3), ones(3, 4)), {"factor": ones(2, 3)}),
        ("factor: expected the strides", (ones(2, 3), ones(3, 4)), {"factor": ones(4, 2).T}),
        ("out: expected shape", (ones(2, 3), ones(3, 4)), {"out": ones(4, 2)}),
        ("out: expected contiguous rows", (ones(2, 3), ones(3, 4)), {"out": ones(4, 8)[::2, ::2]}),
    ],
)
def test_what_is_refused(
    message: str, arguments: tuple[object, ...], options: dict[str, object]
) -> None:
    with pytest.raises(KernelError, match=message):
        kernels.matmul(*arguments, **options)  # type: ignore[arg-type]


def test_a_result_of_its_own() -> None:
    """Overlaps, results that overlap themselves, and memory that may not be written."""
    square = ones(6, 6)
    for name, arguments in {
        "a": (square, ones(6, 6)),
        "b": (ones(6, 6), square),
        "bias": (ones(6, 6), ones(6, 6), square[2]),
    }.items():
        with pytest.raises(KernelError, match=f"it overlaps {name}"):
            kernels.matmul(*arguments, out=square)
    area = ones(80)
    with pytest.raises(KernelError, match="it overlaps residual"):
        kernels.matmul(
            ones(6, 6), ones(6, 6), out=area[:36].reshape(6, 6), residual=area[6:42].reshape(6, 6)
        )
    with pytest.raises(KernelError, match="it overlaps factor"):
        kernels.matmul(ones(6, 6), ones(6, 6), out=square, factor=square)
    repeated = np.lib.stride_tricks.as_strided(area, (6, 6), (0, 4))
    folded = np.lib.stride_tricks.as_strided(area, (2, 6, 6), (4 * 5, 4 * 6, 4))
    for a, out in ((ones(6, 6), repeated), (ones(2, 6, 6), folded)):
        with pytest.raises(KernelError, match="do not overlap"):
            kernels.matmul(a, ones(6, 6), out=out)
    locked = ones(6, 6)
    locked.flags.writeable = False
    with pytest.raises(KernelError, match="out: expected a writeable"):
        kernels.matmul(ones(6, 6), ones(6, 6), out=locked)
    assert (square == 1).all()
    assert (area == 1).all()


@pytest.mark.parametrize("shapes", [((0, 4), (4, 4)), ((4, 0), (0, 4)), ((4, 4), (4, 0))])
def test_no_algorithm_applies_to_a_product_without_numbers(
    shapes: tuple[tuple[int, int], tuple[int, int]],
) -> None:
    """Asking for their scratch memory divided by zero, which ended the process."""
    assert dict(kernels.matmul_algorithms(*shapes)) == {}
