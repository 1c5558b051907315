"""Linear layers of few rows: on float32 weights, and on weights rounded to bfloat16."""

from __future__ import annotations

import convolution
import numpy as np
import pytest
from bfloat16 import rounded, value_of
from convolution import FEW_ROWS, Case
from numpy.typing import NDArray

from bestof import kernels
from bestof.errors import KernelError

EPSILON = float(np.finfo(np.float32).eps) / 2
ROWS = [row for row in kernels.algorithms().values() if row.shapes == "few rows"]
NAMES = [row.name for row in ROWS]


def _operands(case: Case) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    draw = np.random.default_rng(5)
    return draw.standard_normal(case.x_shape, np.float32), draw.standard_normal(
        case.w_shape, np.float32
    )


@pytest.mark.parametrize("case", FEW_ROWS, ids=str)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_nothing_but_the_weights_is_rounded(case: Case, row: kernels.Algorithm) -> None:
    """Element by element: sums of products in any order err by eps * terms * sum |a b|."""
    x, w = _operands(case)
    read = value_of(rounded(w)) if row.rounds == "weights" else w
    wanted = convolution.forward(case, x, read)
    bound = EPSILON * (case.w_shape[3] + 1) * convolution.forward(case, np.abs(x), np.abs(read))
    for threads in (1, 2):
        y = np.full(case.y_shape, np.nan, np.float32)
        kernels.conv2d(x, w, out=y, algorithm=row.name, threads=threads)
        assert (np.abs(y - wanted) <= bound).all()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_promise_of_its_own(row: kernels.Algorithm) -> None:
    """The error of rounded weights does not grow with the number of inputs."""
    case = Case((2, 1, 1, 8192), (600, 1, 1, 8192))
    x, w = _operands(case)
    promise = kernels.conv2d_algorithms(case.x_shape, case.w_shape)[row.name].error_bound
    assert promise <= row.rounding.rms + 4.1e-6
    wanted = convolution.forward(case, x, w)
    error = kernels.conv2d(x, w, algorithm=row.name) - wanted
    assert np.sqrt(np.mean(error**2)) <= promise * np.sqrt(np.mean(wanted**2))


def test_only_weights_of_bfloat16_are_packed() -> None:
    rows = kernels.conv2d_algorithms((1, 1, 3, 40), (50, 1, 1, 40))
    assert {name: rows[name].packs for name in NAMES} == {"matvec": False, "matvec_bf16": True}
    assert rows["matvec"].scratch_bytes == 0
    w = np.ones((50, 1, 1, 40), np.float32)
    assert kernels.pack_weights(w, "matvec_bf16").nbytes == w.nbytes // 2
    with pytest.raises(KernelError, match="expected one that packs weights; got matvec"):
        kernels.pack_weights(w, "matvec")


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "options"),
    [
        ((9, 1, 1, 8), (8, 1, 1, 8), {}),
        ((1, 3, 3, 8), (8, 1, 1, 8), {}),
        ((1, 2, 2, 8), (8, 2, 2, 8), {}),
        ((1, 2, 2, 8), (8, 1, 1, 4), {"groups": 2}),
        ((1, 2, 2, 8), (8, 1, 1, 8), {"stride": 2}),
        ((1, 1, 1, 8), (8, 1, 1, 8), {"padding": ((0, 1), (0, 0))}),
    ],
)
def test_it_applies_to_few_rows_only(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], options: dict[str, object]
) -> None:
    found = kernels.conv2d_algorithms(x_shape, w_shape, **options)  # type: ignore[arg-type]
    assert not {*NAMES} & set(found)


@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_touch(name: str) -> None:
    case = Case((5, 1, 1, 33), (19, 1, 1, 33))
    x, w = _operands(case)
    x[3, 0, 0, 32] = np.nan
    residual = np.ones(case.y_shape, np.float32)
    usual = kernels.conv2d(np.nan_to_num(x), w, residual=residual, algorithm=name)
    y = residual.copy()
    kernels.conv2d(x, w, residual=y, out=y, algorithm=name)  # in place
    assert np.isnan(y[3]).all()
    np.testing.assert_array_equal(np.delete(y, 3, 0), np.delete(usual, 3, 0))
