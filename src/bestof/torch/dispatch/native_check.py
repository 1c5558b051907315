"""Compares a C++ kernel with its Python form, before settled calls are left to it.

Trials run alternatives from Python. Settled calls are answered in C++, which reads addresses,
strides and offsets by code of its own. A check runs that code on the operands of a call, and on
copies of them that begin within their storages. It takes three more runs of the alternative, for
each kernel and strides. It is repeated as a live check: see `LiveChecks`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bestof.errors import KernelError
from bestof.selection.interrupts import reraise_from_outside
from bestof.selection.notice import warn
from bestof.selection.state.registry import Defaults
from bestof.torch.ops.distance import pieces

Operands: TypeAlias = tuple[Any, ...]
"""The operands of a call: tensors, None, and others that are handed on."""

_LIMIT = 65536
# Operands whose storage would take so many times their elements are not copied, nor are those of
# more bytes: memory may be short.
_SPARSE, _LARGE = 8, 64 * 2**20


class NativeChecks:
    """Remembers which C++ kernels of one operation gave the results of their Python form.

    A kernel that did not is never called again; Python answers in its place. The user is warned
    once for each alternative. `failed` is called when a kernel fails that has passed before.
    """

    def __init__(self, operation: str, failed: Callable[[], object] = lambda: None) -> None:
        self._operation = operation
        self._failed = failed
        self._passed: dict[Hashable, bool] = {}
        self._warned: set[str] = set()

    def passes(
        self, key: Hashable, name: str, problem: object, compare: Callable[[], bool | None]
    ) -> bool:
        """Return whether the kernel of the alternative `name` may answer calls with this key.

        `compare` is called until it returns whether the results agree. It returns None if the
        kernel refused the call, or if memory is short.
        """
        before, checks = self._passed.get(key), Defaults.live_checks
        item = (self._operation, key)
        if before is False or (before and not checks.is_due(item)):
            return before
        started = checks.clock()
        known = compare()
        checks.book(item, checks.clock() - started)
        if known is None:
            return before or False
        if len(self._passed) >= _LIMIT:
            self._passed.clear()
        self._passed[key] = known
        if before and not known:
            self._failed()
        if not known and name not in self._warned:
            self._warned.add(name)
            warn(
                f"the C++ kernel of {name!r} does not give the result of its Python form for "
                f"{self._operation} {problem}; bestof calls the Python form, which is right but "
                f"takes some 20 microseconds more a call; please report this with your processor "
                f"and the versions of bestof and torch"
            )
        return known


def agree(
    native: Callable[..., Any],
    by_python: Callable[..., Any],
    operands: Operands,
    tolerance: Callable[..., Tensor],
    fixed: Sequence[int] = (),
) -> bool | None:
    """Return whether both functions give the same for operands, and for copies of them elsewhere.

    They return a tensor or a tuple of tensors. `tolerance` returns how far elements may be apart:
    (operands) -> tensor that broadcasts to each result. `fixed` are the places of operands that
    are not copied. Returns None if `native` refuses, or if memory is short.
    """
    try:
        first = native(*operands)
        if first is None:
            return None
        expected, apart = by_python(*operands), tolerance(*operands)
        if not _is_close(first, expected, apart):
            return False
        del first  # before the copies
        elsewhere = tuple(
            _moved(x, 2 * place + 1) if isinstance(x, Tensor) and place not in fixed else x
            for place, x in enumerate(operands)
        )
        second = native(*elsewhere)
        return None if second is None else _is_close(second, expected, apart)
    except (RuntimeError, KernelError, MemoryError):  # memory is short, of the copies for example
        reraise_from_outside()
        return None


def _is_close(got: Any, expected: Any, tolerance: Tensor) -> bool:
    if not isinstance(expected, Tensor):
        pairs = zip(got, expected, strict=True)
        return all(_is_close(one, other, tolerance) for one, other in pairs)
    if got.shape != expected.shape or got.stride() != expected.stride():
        return False
    return all(_are_near(*parts) for parts in pieces(got, expected, tolerance.expand_as(got)))


def _are_near(got: Tensor, expected: Tensor, tolerance: Tensor) -> bool:
    near = ((got - expected).abs() <= tolerance) & tolerance.isfinite()
    return bool((near | (got == expected) | (got.isnan() & expected.isnan())).all())


def _moved(tensor: Tensor, by: int) -> Tensor:
    """Return a copy of the same strides that begins `by` elements into its storage.

    Memory around and between its elements is NaN, so that a kernel that reads there is found.
    """
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((extent - 1) * stride for extent, stride in axes)
    if span > _SPARSE * tensor.numel() or tensor.nbytes > _LARGE:
        return tensor
    storage = torch.full((span + 2 * by,), torch.nan, dtype=tensor.dtype, device="cpu")
    return storage.as_strided(tensor.shape, tensor.stride(), by).copy_(tensor)
