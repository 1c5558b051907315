"""The native kernels as alternatives. They read operands as they lie, transposed or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor

from bestof.errors import KernelError
from bestof.kernels import MatmulPlan, isa, matmul_algorithms
from bestof.kernels.addresses import c_calls, plan_address
from bestof.torch.backends.shim import Form, Native, native_plan
from bestof.torch.ops.bound import ErrorBound
from bestof.torch.ops.dtypes import BFLOAT16, FLOAT32
from bestof.torch.ops.product.packed import PackedMatrices, lending_key
from bestof.torch.ops.product.problem import ProductProblem
from bestof.torch.ops.product.pytorch_product import PyTorchProduct
from bestof.torch.ops.row import Row

Strides: TypeAlias = tuple[int, ...]

_FEWEST, _MOST = 17, 512  # rows of A for which B is packed once
_B = 2  # its place among bias, A and B


def rows(kept: PackedMatrices) -> tuple[Row[ProductProblem], ...]:
    """Return a row for each algorithm and type of operands. Packed matrices go to `kept`."""
    every = matmul_algorithms((1, 1), (1, 1))  # each of them computes the smallest product
    plain = tuple(
        Row(
            f"native {name}",
            product(name),
            supports(name),
            dtypes=(FLOAT32,),
            bound=bound(name),
            accuracy="relaxed" if promise.algorithm.relaxed else "float32",
            compiled=compiled(name),
            scratch=scratch(name),
        )
        for name, promise in every.items()
    )
    packed = tuple(
        Row(
            f"native {name} packed",
            packed_product(name, kept),
            supports_packed(name),
            dtypes=(FLOAT32,),
            bound=bound(name),
            accuracy="float32",
            compiled=compiled(name, packed=True),
            packs=name,
            scratch=scratch(name),
        )
        for name, promise in every.items()
        if promise.packs and not promise.algorithm.relaxed
    )
    narrow = tuple(
        Row(
            f"native bfloat16 {name}",
            product(name),
            supports(name),
            dtypes=(BFLOAT16,),
            bound=bound(name),
            accuracy="float32",
            compiled=compiled(name),
            scratch=scratch(name),
        )
        for name, promise in every.items()
        if "bfloat16" in promise.algorithm.dtypes
    )
    return plain + packed + narrow


def supports(algorithm: str) -> Callable[[ProductProblem], bool]:
    """Return the test for problems that an algorithm may compute fastest, not by emulation."""

    def answer(problem: ProductProblem) -> bool:
        try:
            found = matmul_algorithms(*_shapes(problem), dtype=problem.dtype).get(algorithm)
        except KernelError:  # more than 2^40 results, for example: PyTorch says so better
            return False
        if found is None or found.algorithm.emulated:
            return False
        return problem.m >= found.algorithm.least_rows

    return answer


def scratch(algorithm: str) -> Callable[[ProductProblem], int]:
    """Return the function from a problem to the bytes of scratch, with B packed or not."""

    def answer(problem: ProductProblem) -> int:
        return matmul_algorithms(*_shapes(problem), dtype=problem.dtype)[algorithm].scratch_bytes

    return answer


def supports_packed(algorithm: str) -> Callable[[ProductProblem], bool]:
    """Return the test for problems whose B may be packed once: dense, and without gradients.

    Comparing the fingerprint of B reads it once more, which few rows do not make up for. Many rows
    make up for packing at each call.
    """
    computes = supports(algorithm)
    return lambda problem: (
        problem.frozen
        and _FEWEST <= problem.m <= _MOST
        and problem.b_layout in ("rows", "columns")
        and computes(problem)
    )


def bound(algorithm: str) -> Callable[[ProductProblem], ErrorBound]:
    """Return the function from a problem to the error that an algorithm promises."""

    def answer(problem: ProductProblem) -> ErrorBound:
        promise = matmul_algorithms(*_shapes(problem), dtype=problem.dtype)[algorithm]
        return ErrorBound(promise.error_bound, promise.maximum_bound)

    return answer


def product(algorithm: str) -> Callable[..., Tensor]:
    """Return the function (originals, problem, bias, a, b) -> C."""

    def run(
        _originals: PyTorchProduct,
        problem: ProductProblem,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
    ) -> Tensor:
        plan = _plan_of(algorithm, problem, a, b)
        c = torch.empty(plan.out_shape, dtype=a.dtype, device="cpu")
        added = _added(bias)
        plan.run(a.data_ptr(), b.data_ptr(), c.data_ptr(), 0 if added is None else added.data_ptr())
        return c

    return run


def packed_product(algorithm: str, kept: PackedMatrices) -> Callable[..., Tensor]:
    """Return the same function, which reads B packed and keeps it in `kept`."""
    plain = product(algorithm)

    def run(
        originals: PyTorchProduct,
        problem: ProductProblem,
        bias: Tensor | None,
        a: Tensor,
        b: Tensor,
    ) -> Tensor:
        packed = kept.get(b, algorithm)
        if packed is None:
            return plain(originals, problem, bias, a, b)
        plan = _plan_of(algorithm, problem, a, b)
        c = torch.empty(plan.out_shape, dtype=a.dtype, device="cpu")
        plan.run(a.data_ptr(), packed, c.data_ptr(), 0 if bias is None else bias.data_ptr())
        return c

    return run


def _added(bias: Tensor | None) -> Tensor | None:
    """Return a bias as native kernels read it: in float32."""
    return None if bias is None else bias.float()


def compiled(algorithm: str, *, packed: bool = False) -> Callable[..., Native | None]:
    """Return the function (problem, bias, a, b) to the kernel for calls without Python.

    There is none if the bias is to be converted first.
    """

    def make(problem: ProductProblem, bias: Tensor | None, a: Tensor, b: Tensor) -> Native | None:
        if _added(bias) is not bias:
            return None
        plan = _plan_of(algorithm, problem, a, b)
        product = Form.of(torch.empty(plan.out_shape, dtype=a.dtype, device="meta"))
        key = lending_key(algorithm, tuple(b.shape), b.stride()) if packed else 0
        read = _B, key, b.numel()
        return native_plan(plan, c_calls(), plan_address(plan), 3, [product], read)

    return make


def _plan_of(algorithm: str, problem: ProductProblem, a: Tensor, b: Tensor) -> MatmulPlan:
    return _plan(algorithm, a.shape, b.shape, a.stride(), b.stride(), problem.dtype, isa())


@lru_cache(maxsize=4096)
def _plan(
    algorithm: str,
    a: Sequence[int],
    b: Sequence[int],
    a_strides: Strides,
    b_strides: Strides,
    dtype: str,
    _isa: str,
) -> MatmulPlan:
    """Return the plan; it holds for the instruction set in use."""
    return MatmulPlan(
        a,
        b,
        a_strides=_near(a, a_strides),
        b_strides=_near(b, b_strides),
        algorithm=algorithm,
        dtype=dtype,
    )


def _near(shape: Sequence[int], strides: Strides) -> Strides:
    """Return strides that reach the same elements; an axis of one element may have had any."""
    return tuple(stride if extent > 1 else 1 for extent, stride in zip(shape, strides, strict=True))


def _shapes(problem: ProductProblem) -> tuple[Strides, Strides]:
    a, b = (problem.m, problem.k), (problem.k, problem.n)
    return ((problem.batch, *a), (problem.batch, *b)) if problem.is_batched else (a, b)
