"""Matrix products: linear layers, `matmul` and `einsum` call these, in both passes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bestof.accuracy import Accuracy
from bestof.configuration import Configuration
from bestof.torch.backends.shim import Shim
from bestof.torch.ops.bound import BFLOAT16_INSIDE, ErrorBound, float32_inside, summation_bound
from bestof.torch.ops.combination import LEAST, Combination, combined, numbers_for
from bestof.torch.ops.comparison import (
    Finding,
    Scale,
    Side,
    compare,
    energies,
    overflowed,
    own_sums,
    root,
)
from bestof.torch.ops.dtypes import FLOAT32, SHORT, name_of
from bestof.torch.ops.guards import PLAIN, passes_through
from bestof.torch.ops.onednn import sums_in_float32
from bestof.torch.ops.operation import Call, Operands, Operation
from bestof.torch.ops.product import bfloat16, native, onednn
from bestof.torch.ops.product.in_float32 import in_float32
from bestof.torch.ops.product.neighbourhood import Neighbourhood
from bestof.torch.ops.product.packed import PackedMatrices
from bestof.torch.ops.product.problem import ProductProblem
from bestof.torch.ops.product.pytorch_product import PRODUCTS, PyTorchProduct
from bestof.torch.ops.pytorch_kernel import Kernel
from bestof.torch.ops.row import Row
from bestof.torch.ops.search_settings import BY_PYTHON, PATIENCE, RACE

# Where MKL is at its peak, other rows come within a few percent of it. In a race with a tie of 3 %
# on a busy Cascade Lake Xeon, noise chose a kernel that was 5 % slower. With 8 %, a row must be 4 %
# faster than PyTorch's own kernel after all trials.
_TIE = 0.08
_TRIALS = 12
# Trials find the code and the operands out of the caches, which settled calls do not. 8 rows by
# weights of 512 x 512 took 175 us by PyTorch and 160 us by few_rows in trials, but 82 and 92 us
# once settled (two threads of a Cascade Lake Xeon). A row must also be faster by so many seconds.
_BY_COLD_CACHES = 20e-6
_BATCHED = 2  # the place of `bmm`, from which on operators multiply batches
# Of native/torch/rules.h, by whether PyTorch sums bfloat16 and float16 in float32. Otherwise it
# emulates them; no processor has instructions for float16 alone.
_RULES = {
    (True, True): "product",
    (True, False): "product, float16 emulated",
    (False, False): "product, short types emulated",
    (False, True): "product",
}
_FORMERLY = ("bestof:Products.by",)


def as_is(
    originals: PyTorchProduct, problem: ProductProblem, bias: Tensor | None, a: Tensor, b: Tensor
) -> Tensor:
    """Multiply by PyTorch's own kernel."""
    return originals(problem.operation, bias, a, b)


class Product(Operation[ProductProblem]):
    """`aten::mm`, `addmm`, `bmm` and `baddbmm` without factors.

    A call is (operator, bias, a, b); the bias is None for `mm` and `bmm`.
    """

    name = "product"
    operators = PRODUCTS
    switch = "product"
    least = 2**22
    """Multiply-adds from which on bestof chooses for a product. PyTorch computes smaller ones in
    less than 120 microseconds on one core of a Cascade Lake Xeon. A settled call takes 1 to 2
    microseconds more, and one in 64 is timed from Python. With a limit of 2^21, an MLP of four
    512 x 512 layers for 8 rows fell to 0.985 of PyTorch's speed. Of types that PyTorch emulates
    here, a quarter is enough."""
    patience = PATIENCE

    def __init__(self) -> None:
        self.packed = PackedMatrices()
        self.rule = _RULES[sums_in_float32("bfloat16"), sums_in_float32("float16")]
        first: Row[ProductProblem] = Row("as is", as_is)
        by_onednn: Row[ProductProblem] = Row(
            "onednn",
            onednn.product,
            onednn.supports,
            dtypes=(FLOAT32,),
            accuracy="float32",
            compiled=onednn.compiled,
            shapes=onednn.SHAPES,
        )
        by_native = native.rows(self.packed)
        rows: tuple[Row[ProductProblem], ...] = (
            first,
            by_onednn,
            Row(
                "bfloat16",
                bfloat16.product,
                bfloat16.supports,
                dtypes=(FLOAT32,),
                bound=lambda _: BFLOAT16_INSIDE,
                accuracy="relaxed",
            ),
            *by_native,
            in_float32("float32", first),
            in_float32("float32 onednn", by_onednn),
            *(
                in_float32(f"float32 {row.name}", row)
                for row in by_native
                if row.dtypes == (FLOAT32,) and row.accuracy == "float32" and not row.packs
            ),
        )
        self.rows = tuple(replace(row, formerly=_FORMERLY) for row in rows)
        handicaps = tuple(
            (row.name, BY_PYTHON if row.compiled is None else _BY_COLD_CACHES)
            for row in self.rows[1:]
        )
        self.race = replace(RACE, tie=_TIE, max_trials=_TRIALS, handicaps=handicaps)

    def original(self, kernels: Sequence[Any]) -> PyTorchProduct:
        """Return PyTorch's own kernels: (operator, bias, a, b) -> C."""
        return PyTorchProduct(kernels)

    def arguments(self, operator: str, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the place of the operator, and its matrices, if the rule "product" holds."""
        place = PRODUCTS.index(operator)
        bias, a, b, *factors = given if place % 2 else (None, *given)
        work, dtype = a.numel() * b.shape[-1], a.dtype
        least = self.least if sums_in_float32(name_of(dtype)) else self.least / 4
        if work < least or dtype not in self.dtypes or any(one != 1 for one in factors):
            return None
        if b.dtype is not dtype or not (_is_plain(a) and _is_plain(b)):
            return None
        is_row = bias is None or (
            bias.dtype is dtype
            and bias.shape == b.shape[-1:]
            and (bias.is_contiguous() or bias.numel() == 1)
        )
        return (place, bias, a, b) if is_row else None

    def call(
        self, level: Accuracy, operator: int, bias: Tensor | None, a: Tensor, b: Tensor
    ) -> Call | None:
        """Return the problem and the operands of a call; None if PyTorch answers it.

        C++ asks about none that are not plain. Kernels would read them wrong.
        """
        if (
            type(a) not in PLAIN
            or type(b) not in PLAIN
            or (bias is not None and type(bias) not in PLAIN)
            or level == "exact"
            or a.dim() != (3 if operator >= _BATCHED else 2)
            or not (_is_plain(a) and _is_plain(b))
            or passes_through()
        ):
            return None
        name = PRODUCTS[operator].removeprefix("aten::")
        return Call(ProductProblem.of(name, a, b, level), (bias, a, b))

    def compare(
        self,
        row: Row[ProductProblem],
        original: Kernel,
        args: tuple[Any, ...],
        expected: Tensor,
        got: Tensor,
    ) -> Finding:
        """Return which result is wrong, within what each row promises."""
        problem, bias, a, b = args

        def in_float64() -> Tensor:
            wide = None if bias is None else bias.double()
            result = as_is(original, problem, wide, a.double(), b.double())  # type: ignore[arg-type]
            return overflowed(result, a.dtype)

        return compare(
            self._side(row, problem, got),
            self._side(self.rows[0], problem, expected),
            _scale(a, b),
            in_float64,
        )

    def combination(self, args: tuple[Any, ...]) -> Combination | None:
        """Return the product of one combination of the rows of A."""
        problem, bias, a, b = args
        if problem.is_batched or problem.m < LEAST or problem.dtype != "float32":
            return None
        numbers = numbers_for(problem.m)
        row = combined(a, numbers)
        bias = None if bias is None else bias * float(numbers.sum())
        return Combination((problem._replace(m=1, a_layout="rows"), bias, row, b), numbers)

    def _side(self, row: Row[ProductProblem], problem: ProductProblem, result: Tensor) -> Side:
        """Return a result with the error of its sums. PyTorch may sum in the type of the result."""
        bound = bound_of(row, problem)
        if row.bound is None and result.dtype is torch.float32:
            bound = bound.plus(float32_inside())
        if row.dtypes is not None or result.dtype not in SHORT:
            return Side(result, bound)
        return Side(result, bound, own_sums(result.dtype))

    def tolerance(
        self, row: Row[ProductProblem], problem: ProductProblem, *operands: Any
    ) -> Tensor:
        """Return how far two results may be apart, for each element.

        By the inequality of Cauchy and Schwarz, the norms of a row and a column bound the sum of
        the magnitudes of their products. This holds where the products cancel, too.
        """
        bias, a, b = operands
        norm = partial(torch.linalg.vector_norm, keepdim=True, dtype=torch.float32)
        magnitude: Tensor = norm(a, dim=-1) * norm(b, dim=-2)
        if bias is not None:
            magnitude = magnitude + bias.abs()
        # Each sum is rounded once to the type of the result.
        return (2 * bound_of(row, problem).maximum + torch.finfo(a.dtype).eps) * magnitude

    def neighbours(self) -> Callable[[Hashable], Iterable[Hashable]]:
        """Return a memory of products, which tells those of nearly the same sizes."""
        return Neighbourhood()  # type: ignore[return-value]  # its problems are products

    def configure(self, configuration: Configuration) -> None:
        """Limit the memory of packed matrices."""
        self.packed.limit = configuration.packed_mib << 20
        if self.packed.size > self.packed.limit:
            self.packed.clear()

    def lend_to(self, shim: Shim | None) -> None:
        """Lend packed matrices to settled calls without Python from now on."""
        self.packed.shim = shim

    def packs_again(self, row: Row[ProductProblem], operands: Operands) -> bool:
        """Return whether B is met for the second time since it was made, or changed last."""
        return self.packed.meets_again(operands[2], row.packs)

    def decided(self, problem: ProductProblem, chosen: dict[ProductProblem, str]) -> None:
        """Free what trials have packed, unless a decision needs matrices of this shape."""
        if not problem.frozen:
            return
        shape, packing = (problem.k, problem.n), {row.name for row in self.rows if row.packs}
        if not any(
            name in packing and (other.k, other.n) == shape for other, name in chosen.items()
        ):
            self.packed.drop(shape)

    def clear(self) -> None:
        """Free all packed matrices."""
        self.packed.clear()

    def examples(self) -> dict[str, tuple[Any, ...]]:
        """Return linear layers of BERT-base, and few rows of large weights."""
        numbers = torch.Generator().manual_seed(0)
        sizes = (1024, 768, 768), (1024, 768, 3072), (1024, 3072, 768), (4, 2048, 2048)
        return {
            f"linear, {m} x {k} to {n}": (
                1,
                torch.randn(n, generator=numbers),
                torch.randn(m, k, generator=numbers),
                torch.randn(n, k, generator=numbers).t(),
            )
            for m, k, n in sizes
        }


def _is_plain(matrices: Tensor) -> bool:
    """Return whether matrices have dense rows or columns, and a batch is not expanded."""
    (rows, columns), (row, column) = matrices.shape[-2:], matrices.stride()[-2:]
    has_rows = (column == 1 or columns == 1) and (row >= columns or rows == 1)
    has_columns = (row == 1 or rows == 1) and (column >= rows or columns == 1)
    is_batch = matrices.dim() == 2 or len(matrices) == 1 or matrices.stride(0) > 0
    return is_batch and (has_rows or has_columns)


def bound_of(row: Row[ProductProblem], problem: ProductProblem) -> ErrorBound:
    """Return the error that the sums of a row promise."""
    columns = row.columns(problem)
    assert columns is not None  # the row is tried
    return summation_bound(problem.k, columns.sums) if row.bound is None else row.bound(problem)


def _scale(a: Tensor, b: Tensor) -> Scale:
    """Return the scale of results: the mean of the sums of squared terms is exact."""
    rows, columns = a.shape[-2], b.shape[-1]
    terms = energies(a, (-2,)) * energies(b, (-1,))
    mean = terms.sum(-1).mean() / (rows * columns)
    return Scale(root(mean), root(energies(a, (-1,)).max() * energies(b, (-2,)).max()))
