"""Wraps the C++ kernels that answer settled calls without Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bestof.torch.backends._shim import (
    ASKED_EVERY,
    Count,
    Loan,
    Native,
    OperatorShim,
    Shim,
    Watch,
    compute,
    enter_skipped,
    find,
    find_gradients,
    find_guards,
    find_onednn,
    find_registration,
    find_tensor_version,
    forget_skipped,
    is_skipped,
    leave_skipped,
    make_operator_shim,
    make_watch,
    memory_sample,
    native_convolution,
    onednn_product,
)
from bestof.torch.backends._shim import native_plan as _native_plan

__all__ = [
    "ASKED_EVERY",
    "Count",
    "Form",
    "Loan",
    "Native",
    "OperatorShim",
    "Shim",
    "Watch",
    "computed_by",
    "dense_bytes",
    "enter_skipped",
    "find_gradients",
    "find_registration",
    "forget_skipped",
    "handle_conversions",
    "is_skipped",
    "leave_skipped",
    "make_operator_shim",
    "native_convolution",
    "native_plan",
    "onednn",
    "pytorch_libraries",
    "sample_of",
    "watch",
]


@cache
def onednn() -> Native | None:
    """Return oneDNN's product; None if PyTorch was built without it."""
    return onednn_product() if any(map(find_onednn, pytorch_libraries())) else None


class Form(NamedTuple):
    """Sizes, strides and dtype of a tensor that a native kernel makes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: int
    """The number of the dtype in c10/core/ScalarType.h."""

    @classmethod
    def of(cls, tensor: Tensor) -> Form:
        """Return the form of a tensor of a dtype that native kernels write."""
        return cls(tuple(tensor.shape), tensor.stride(), _DTYPES[tensor.dtype])


_DTYPES = {
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bfloat16: 15,
}


def native_plan(
    owner: object,
    kernels: int,
    plan: int,
    operands: int,
    results: Sequence[Form],
    packed: tuple[int, int, int] = (0, 0, 0),
) -> Native:
    """Return a plan of bestof.kernels as a kernel for calls without Python.

    owner keeps the plan at the address `plan`, which reads so many operands. kernels: the address
    of `c_calls`. packed: the place of the operand that the plan reads packed, the key that it is
    lent by, and its elements; the key is 0 if the plan reads all operands.
    """
    return _native_plan(owner, kernels, plan, operands, [tuple(one) for one in results], packed)


def computed_by(shim: Shim, native: Native, tensors: Sequence[Tensor | None]) -> Any:
    """Return what settled calls get from a kernel: a tensor or a tuple; None if it refuses.

    The tensors are the operands of a call, None where one is absent. The kernel refuses if the shim
    has not been lent what it reads packed.
    """
    conversions = handle_conversions()
    assert conversions is not None  # else there is no shim
    to_tensors, to_handle = conversions
    handles = [None if one is None else to_handle(one) for one in tensors]
    found = compute(shim, native, handles)
    results = None if found is None else tuple(to_tensors(found))
    return results[0] if results is not None and len(results) == 1 else results


def pytorch_libraries() -> list[str]:
    return [str(path) for path in (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")]


@cache
def handle_conversions() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Return the conversions from handles to tensors and back; None if PyTorch lacks any."""
    module = getattr(torch._C, "_aoti", None)
    names = ("alloc_tensors_by_stealing_from_void_ptrs", "unsafe_alloc_void_ptr_from_tensor")
    if any(not hasattr(module, name) for name in names):
        return None
    libraries = pytorch_libraries()
    if not any(map(find, libraries)) or not any(map(find_guards, libraries)):
        return None
    any(map(find_tensor_version, libraries))  # else Python runs those with packed weights
    return getattr(module, names[0]), getattr(module, names[1])


def dense_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's memory on the CPU; 0 if its elements have gaps or overlap."""
    if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.numel() == 0:
        return 0
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    is_dense = tensor.numel() == 1 + sum((extent - 1) * step for extent, step in axes)
    return tensor.nbytes if is_dense else 0


def sample_of(tensor: Tensor) -> bytes:
    """Return the first and last 64 bytes of a tensor's memory, by which a watch knows it again."""
    bytes = dense_bytes(tensor)
    needed = bytes and bytes + tensor.storage_offset() * tensor.element_size()
    if needed > tensor.untyped_storage().nbytes():  # its memory was given up
        return b""
    return memory_sample(tensor.data_ptr() if bytes else 0, bytes)


def watch(
    tensors: Sequence[Tensor],
    places: Sequence[tuple[Mapping[str, Any], str]] | None = None,
    children: Sequence[tuple[dict[str, Any], str, object]] = (),
    sized: Sequence[dict[str, Any]] = (),
    classed: Sequence[object] = (),
    *,
    sampled: bool = True,
) -> Watch | None:
    """Return a watch that tells whether tensors are unchanged: their places, versions, addresses,
    and, if `sampled`, the first and last bytes of their memory.

    A place is a dict and the name that it has the tensor by. Each of `children` is a dict, a name,
    and the object that the dict must have by this name. The dicts `sized` must neither grow nor
    shrink, and the objects `classed` must keep their classes.
    Asking about 218 tensors whose objects have left the caches takes 60 to 100 us; Python takes
    370. Returns None if PyTorch does not tell: of inference tensors, in places that are no dicts,
    and in releases that lack the functions of the shim.
    """
    conversions = handle_conversions()
    if conversions is None or any(one.is_inference() for one in tensors):
        return None
    kept = [(own, name) for own, name in places or () if isinstance(own, dict)]
    if places is not None and len(kept) < len(places):
        return None
    handles = [conversions[1](one) for one in tensors]
    return make_watch(
        list(tensors),
        [None] * len(tensors) if places is None else [*kept],
        handles,
        [dense_bytes(one) if sampled else 0 for one in tensors],
        list(children),
        list(sized),
        list(classed),
    )
