"""Matrix products, by an algorithm of the caller's choice.

a is [M, K] and b is [K, N], or [batch, M, K] and [batch, K, N]: float32 or bfloat16, on the CPU, of
any strides. Transposed and expanded views are read as they lie. A matrix of two dimensions, or a
batch of one, is multiplied with each matrix of the other batch.

The bias is float32, and so are the sums. NumPy lacks bfloat16: pass arrays of ml_dtypes, or the
bits as uint16 with `dtype="bfloat16"`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from bestof.errors import KernelError
from bestof.kernels import _native
from bestof.kernels._native import PackedMatrix
from bestof.kernels.algorithms import ErrorBound
from bestof.kernels.array import Array, bits_of, check_detached, dtype_of, empty_like, shape_of
from bestof.kernels.pair import shape_tuple, threads_of
from bestof.kernels.problem import Activation, activation_of


@dataclass(frozen=True, slots=True)
class MatmulAlgorithm:
    """An algorithm of the matrix product, as its row of `native/gemm/algorithms.inc` describes it.

    error: of its sums, up to a depth of 512; the bound grows with the square root of the depth.
    rounding: the error that rounding float32 operands to bfloat16 adds, 0 if it rounds none.
    relaxed: whether only the relaxed level of accuracy allows it.
    few_rows: whether it computes only results of at most 16 rows, or at most 16 columns, and a
        depth of at most 16,384: it sums in one chain.
    least_rows: of the result, from which it may be the fastest. It computes fewer as well.
    dtypes: the matrices that it takes.
    emulated: whether the instruction set in use lacks the products that it is made of. Then its
    results are the same, but it is slower than the algorithms of float32.
    """

    name: str
    error: ErrorBound
    rounding: ErrorBound
    relaxed: bool
    few_rows: bool
    least_rows: int
    dtypes: tuple[str, ...]
    emulated: bool


@dataclass(frozen=True, slots=True)
class MatmulPromise:
    """What an algorithm promises for one product.

    error_bound, maximum_bound: bounds of the rms and of the largest magnitude of the error, both
    relative to the rms of the result. If the row rounds operands to bfloat16, both hold for random
    operands and many results.
    scratch_bytes: memory beside the arguments, if b is not packed. flops: multiplications and
    additions. packs: whether it takes matrices from `pack_matrix`.
    """

    algorithm: MatmulAlgorithm
    error_bound: float
    maximum_bound: float
    scratch_bytes: int
    flops: float
    packs: bool


def matmul(
    a: Array,
    b: Array | PackedMatrix,
    bias: Array | None = None,
    *,
    algorithm: str | None = None,
    activation: Activation = None,
    residual: Array | None = None,
    factor: Array | None = None,
    out: Array | None = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Array:
    """Return activation(a @ b + bias + residual) * factor.

    b: an array, or a matrix from `pack_matrix`. bias: [N].
    algorithm: a name of `matmul_algorithms`. By default the first that applies, or that of the
    packed matrix.
    activation: as in `conv2d`.
    residual, factor: arrays like out, at its strides. out: the array to write to, with contiguous
    rows or columns; it may be `residual`, and must not overlap any other argument.
    dtype: of a, b, residual, factor and out, float32 or bfloat16; by default that of a.
    threads: by default as many as OpenMP uses, which torch shares.
    Raises KernelError before anything is written.
    """
    check_detached(a=a, b=b, bias=bias, residual=residual, factor=factor, out=out)
    dtype = dtype_of(a, dtype)
    name, slope = activation_of(activation)
    if out is None:
        b_shape = b.shape if isinstance(b, PackedMatrix) else shape_of(b, "b")
        shape = _native.product_shape(shape_tuple(shape_of(a, "a"), "a"), b_shape)
        out = empty_like(a, shape, dtype)
    a, b, bias, residual, factor, result = map(bits_of, (a, b, bias, residual, factor, out))
    _native.matmul(
        a,
        b,
        bias,
        residual,
        factor,
        result,
        _name_of(algorithm),
        dtype,
        name,
        slope,
        threads_of(threads),
    )
    return out


def matmul_algorithms(
    a_shape: Sequence[int],
    b_shape: Sequence[int],
    *,
    a_strides: Sequence[int] | None = None,
    b_strides: Sequence[int] | None = None,
    out_strides: Sequence[int] | None = None,
    dtype: str = "float32",
    threads: int | None = None,
) -> Mapping[str, MatmulPromise]:
    """Return what each algorithm that applies to a product promises, by its name.

    Strides count elements; the default is C-contiguous. threads: those that the scratch memory is
    for; by default as in `matmul`. No algorithm applies to a product without numbers.
    """
    product = _product(a_shape, b_shape, a_strides, b_strides, out_strides, dtype)
    if 0 in (*a_shape, *b_shape):
        return MappingProxyType({})
    rows = _rows(_native.isa())
    return MappingProxyType(
        {
            one.name: MatmulPromise(
                rows[one.name],
                one.error.rms,
                one.error.maximum,
                one.scratch_bytes,
                one.flops,
                one.packs,
            )
            for one in _native.product_promises(product, threads_of(threads))
        }
    )


def pack_matrix(
    b: Array,
    *,
    algorithm: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> PackedMatrix:
    """Return b, [K, N] of any strides, in the layout of `algorithm`, for any number of products.

    For the weights w of a linear layer, [N, K], pass `w.T`. The packed matrix serves the
    instruction set in use, and any a. The result has `algorithm`, `isa`, `shape` and `nbytes`.
    algorithm: by default the first that packs. dtype: that of b, as in `matmul`.
    """
    check_detached(b=b)
    return _native.pack_matrix(
        bits_of(b), _name_of(algorithm), dtype_of(b, dtype), threads_of(threads)
    )


class MatmulPlan:
    """A matrix product whose shapes, strides and algorithm are checked once, at construction.

    This is the cheapest call. `run` takes the addresses of arrays of `dtype` (the bias is float32)
    and does not check them. Strides count elements; the default is C-contiguous. The other
    arguments are those of `matmul`. Construction raises KernelError for what cannot be computed.
    """

    __slots__ = ("_plan", "algorithm", "out_shape")

    def __init__(
        self,
        a_shape: Sequence[int],
        b_shape: Sequence[int],
        *,
        a_strides: Sequence[int] | None = None,
        b_strides: Sequence[int] | None = None,
        out_strides: Sequence[int] | None = None,
        algorithm: str | None = None,
        activation: Activation = None,
        dtype: str = "float32",
        threads: int | None = None,
    ) -> None:
        product = _product(a_shape, b_shape, a_strides, b_strides, out_strides, dtype)
        name, slope = activation_of(activation)
        self._plan = _native.ProductPlan(
            product, _name_of(algorithm), name, slope, threads_of(threads)
        )
        self.algorithm = self._plan.algorithm
        self.out_shape = _native.product_shape(
            shape_tuple(a_shape, "a_shape"), shape_tuple(b_shape, "b_shape")
        )

    def run(
        self,
        a: int,
        b: int | PackedMatrix,
        out: int,
        bias: int = 0,
        residual: int = 0,
        factor: int = 0,
    ) -> None:
        """Run the product on addresses; 0 leaves out the bias, the residual or the factor.

        b may be a packed matrix.
        """
        try:
            self._plan.run(a, b, out, bias, residual, factor)
        except KernelError:
            raise
        except (TypeError, ValueError, RuntimeError):  # arrays have no truth value
            raise KernelError(
                f"addresses: expected integers from 0 on, or a packed matrix; "
                f"got {(a, b, out, bias, residual, factor)}"
            ) from None

    def bind(
        self,
        a: int,
        b: PackedMatrix,
        out: int,
        bias: int = 0,
        residual: int = 0,
        factor: int = 0,
    ) -> Callable[[], None]:
        """Return `run` on these addresses with a packed matrix, for calls without a check."""
        try:
            return _native.BoundProduct(self._plan, b, a, out, bias, residual, factor).run
        except TypeError:
            raise KernelError(
                f"addresses: expected integers from 0 on, and a packed matrix; "
                f"got {(a, b, out, bias, residual, factor)}"
            ) from None


def _name_of(algorithm: str | None) -> str:
    if algorithm is None:
        return ""
    if not isinstance(algorithm, str) or not algorithm:
        raise KernelError(f"algorithm: expected a name of matmul_algorithms; got {algorithm!r}")
    return algorithm


def _product(
    a_shape: Sequence[int],
    b_shape: Sequence[int],
    a_strides: Sequence[int] | None,
    b_strides: Sequence[int] | None,
    out_strides: Sequence[int] | None,
    dtype: str,
) -> _native.Product:
    a, b = shape_tuple(a_shape, "a_shape"), shape_tuple(b_shape, "b_shape")
    out = _native.product_shape(a, b)
    return _native.Product(
        a,
        _strides_of(a, a_strides, "a_strides"),
        b,
        _strides_of(b, b_strides, "b_strides"),
        out,
        _strides_of(out, out_strides, "out_strides"),
        dtype_of(None, dtype),
    )


def _strides_of(
    shape: tuple[int, ...], strides: Sequence[int] | None, name: str
) -> tuple[int, ...]:
    if strides is not None:
        return shape_tuple(strides, name)
    contiguous = [1]
    for extent in shape[:0:-1]:
        contiguous.append(contiguous[-1] * max(extent, 1))
    return tuple(reversed(contiguous))


@cache
def _rows(_isa: str) -> Mapping[str, MatmulAlgorithm]:
    return MappingProxyType({row.name: _algorithm(row) for row in _native.product_rows()})


def _algorithm(row: _native.ProductRow) -> MatmulAlgorithm:
    return MatmulAlgorithm(
        name=row.name,
        error=ErrorBound(row.error.rms, row.error.maximum),
        rounding=ErrorBound(row.rounding.rms, row.rounding.maximum),
        relaxed=row.relaxed,
        few_rows=row.few_rows,
        least_rows=row.least_rows,
        dtypes=tuple(operands for operands, _result, _sums in row.dtypes),
        emulated=row.emulated,
    )
