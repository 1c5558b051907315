"""Every alternative of a matrix product against float64, within the bound that it promises."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from bestof.torch.ops.dtypes import BFLOAT16, FLOAT16, FLOAT32
from bestof.torch.ops.product.problem import ProductProblem
from bestof.torch.ops.product.product import Product, bound_of
from bestof.torch.ops.product.pytorch_product import PyTorchProduct
from bestof.torch.ops.row import Row

PRODUCT = Product()
PRODUCT.packed.limit = 1 << 30
ROWS = PRODUCT.rows


DTYPES = (FLOAT32, BFLOAT16, FLOAT16)


class Case(NamedTuple):
    """Sizes, and how both operands lie: t for columns, s for gaps between the rows."""

    operation: str
    batch: int
    m: int
    k: int
    n: int
    a: str = ""
    b: str = ""


CASES = (
    Case("mm", 1, 1, 1, 1),
    Case("mm", 1, 1, 256, 300),
    Case("mm", 1, 300, 257, 1),
    Case("mm", 1, 7, 300, 130, b="t"),
    Case("mm", 1, 16, 129, 130, b="ts"),
    Case("mm", 1, 65, 40, 33, a="t"),
    Case("mm", 1, 31, 40, 67, a="ts", b="s"),
    Case("mm", 1, 65, 40, 33, a="t", b="t"),
    Case("mm", 1, 33, 5000, 17, a="s"),
    Case("addmm", 1, 1, 256, 300, b="t"),
    Case("addmm", 1, 130, 64, 96, b="t"),
    Case("addmm", 1, 130, 64, 1),
    Case("addmm", 1, 29, 1, 96, a="ts", b="ts"),
    Case("bmm", 3, 20, 30, 40),
    Case("bmm", 3, 65, 64, 65, b="t"),
    Case("bmm", 3, 65, 64, 65, a="t", b="s"),
    Case("bmm", 1, 1, 64, 128),
    Case("baddbmm", 3, 20, 30, 40, b="t"),
    Case("baddbmm", 2, 1, 300, 40, a="s"),
)


def matrices(batch: tuple[int, ...], rows: int, columns: int, how: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    gap = 5 if "s" in how else 0
    if "t" in how:
        return torch.randn((*batch, columns, rows + gap), generator=generator)[..., :rows].mT
    return torch.randn((*batch, rows, columns + gap), generator=generator)[..., :columns]


def rounded(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a matrix in another type that lies as before, gaps included."""
    return torch.empty_strided(matrix.shape, matrix.stride(), dtype=dtype).copy_(matrix)


def is_emulated(row: Row[ProductProblem], problem: ProductProblem) -> bool:
    """Return whether a row of bfloat16 is left out because the processor lacks its products."""
    return row.name.startswith("native bfloat16") and problem.dtype == "bfloat16"


OF_TYPES = tuple((row, one.operands) for row in ROWS for one in row.dtypes or DTYPES)


@pytest.mark.parametrize(("row", "dtype"), OF_TYPES, ids=lambda one: getattr(one, "name", one))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_error_is_within_the_promise(case: Case, row: Row[ProductProblem], dtype: str) -> None:
    """A result of another type than float32 is rounded once in addition."""
    operation, batch, m, k, n, how_a, how_b = case
    batches = (batch,) if operation in ("bmm", "baddbmm") else ()
    to = getattr(torch, dtype)
    a, b = (
        one.to(to) if one.is_contiguous() else rounded(one, to)
        for one in (matrices(batches, m, k, how_a, 0), matrices(batches, k, n, how_b, 1))
    )
    bias = torch.randn(n, generator=torch.Generator().manual_seed(2)).to(to)
    given = [bias, a, b] if operation in ("addmm", "baddbmm") else [a, b]
    before = [one.clone() for one in given]
    problem = ProductProblem.of(operation, a, b, "relaxed")
    if row.packs and not problem.is_batched:
        problem = problem._replace(frozen=True)
    originals = PyTorchProduct()
    if not row.is_tried(problem) and not is_emulated(row, problem):
        pytest.skip(f"{row.name} does not support {problem}")
    result = row.function(originals, problem, bias if len(given) == 3 else None, a, b)
    expected = getattr(torch, operation)(*(one.double() for one in given))
    own = getattr(torch, operation)(*given)
    assert (result.shape, result.stride(), result.dtype) == (own.shape, own.stride(), own.dtype)
    assert all(map(torch.equal, given, before))
    scale = expected.square().mean().sqrt()
    error = (result.double() - expected).abs()
    bound, unit = bound_of(row, problem), torch.finfo(to).eps / 2
    unit = 0.0 if dtype == "float32" else 1.01 * unit
    # Rounding both factors errs by up to 2 * 2^-8 + 2^-16 of a product, 8e-3, where the rms over
    # many results is promised to be 3e-3. The product of 1 x 1 matrices may err by more than that.
    if "bf16" not in row.name or result.numel() > 1:
        assert error.square().mean().sqrt() <= (bound.rms + unit) * scale
    assert (error <= bound.maximum * scale + unit * expected.abs()).all()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("where", ["a", "b", "bias"])
def test_not_a_number_stays_in_its_row_or_column(row: Row[ProductProblem], where: str) -> None:
    a, b = matrices((), 20, 300, "", 0), matrices((), 300, 30, "t", 1)
    bias = torch.zeros(30)
    {"a": a[3], "b": b[:, 3], "bias": bias[3:]}[where][0] = torch.nan
    problem = ProductProblem.of("addmm", a, b, "relaxed")._replace(frozen=bool(row.packs))
    originals = PyTorchProduct()
    if not row.is_tried(problem):
        pytest.skip(f"{row.name} does not support {problem}")
    result = row.function(originals, problem, bias, a, b)
    expected = torch.zeros(20, 30, dtype=torch.bool)
    (expected if where == "a" else expected.t())[3] = True
    assert torch.equal(result.isnan(), expected)
