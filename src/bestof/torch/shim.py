"""Wraps the C++ kernels that answer settled calls without Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from bestof.selection.state.registry import Defaults
from bestof.torch._shim import (
    ASKED_EVERY,
    ConvolutionShim,
    Count,
    Loan,
    Native,
    OperatorShim,
    Shim,
    Watch,
    compute,
    find,
    find_gradients,
    find_guards,
    find_onednn,
    find_registration,
    find_tensor_version,
    make_operator_shim,
    make_watch,
    memory_sample,
    native_convolution,
    onednn_product,
)
from bestof.torch._shim import native_plan as _native_plan

__all__ = [
    "ASKED_EVERY",
    "ConvolutionShim",
    "Count",
    "Form",
    "Loan",
    "Native",
    "OperatorShim",
    "Shim",
    "Watch",
    "computed_by",
    "dense_bytes",
    "make_operator_shim",
    "make_operators",
    "make_shim",
    "native_convolution",
    "native_plan",
    "onednn",
    "sample_of",
    "watch",
]


class Answered(Protocol):
    """What a shim asks of an operation; see `ops/operation.py`."""

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators of PyTorch."""

    @property
    def rule(self) -> str:
        """The rule by which calls are chosen for; see native/torch/rules.h."""

    @property
    def least(self) -> float:
        """The work from which on calls are chosen for."""


def make_shim(
    forward: Callable[..., Any], backward: Callable[..., Any], kept: dict[Any, Any]
) -> ConvolutionShim | None:
    """Return a shim that asks `forward` and `backward` for calls that it does not know.

    It also asks them for training passes while `kept` is not empty, and for calls of native kernels
    while selectors are to use their first alternatives. Returns None if PyTorch lacks the functions
    that it calls, or if somebody else's kernel is in place: the shim calls PyTorch's own.
    """
    conversions = _conversions()
    operations = ("aten::convolution", "aten::convolution_backward")
    if conversions is None or any(
        torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU") for name in operations
    ):
        return None
    return ConvolutionShim(*conversions, forward, backward, kept, Defaults.first_only)


def make_operators(
    operation: Answered, answer: Callable[..., Any], kernels: list[Any]
) -> OperatorShim | None:
    """Return a shim that asks `answer` for calls of an operation that it does not know.

    `kernels` are PyTorch's own, from torch.library.get_kernel, in the order of the operators.
    Returns None if this release of PyTorch lacks the functions that register C++ kernels, if
    another library has replaced one of PyTorch's kernels, or if an operator takes other arguments
    than tensors, numbers, truth values, texts and lists of them.
    """
    conversions = _conversions()
    if conversions is None or objection() is not None:
        return None
    entries = [_entry_of(name) for name in operation.operators]
    if None in entries:
        return None
    return make_operator_shim(
        *conversions,
        answer,
        entries,  # type: ignore[arg-type]  # none of them is None
        kernels,
        operation.rule,
        operation.least,
        Defaults.first_only,
    )


def _entry_of(operator: str) -> tuple[str, str, int] | None:
    """Return the name of an operator, the kinds of its arguments, and the number of its results.

    Returns None if it returns anything else than tensors, or takes lists of tensors.
    """
    schema: Any = torch._C._get_schema(operator, "")
    types = [str(one.type) for one in schema.arguments]
    if any(str(one.type) != "Tensor" for one in schema.returns) or "List[Tensor]" in types:
        return None
    kinds = "".join("t" if one in ("Tensor", "Optional[Tensor]") else "." for one in types)
    return operator.removeprefix("aten::"), kinds, len(schema.returns)


@cache
def objection() -> str | None:
    """Return why this PyTorch takes no kernels in C++ for operators, None if it does.

    The first question tries it, in a process that has no such kernels yet; see `probe.py`.
    """
    from bestof.torch import probe  # noqa: PLC0415 - it needs this module

    if not torch.__version__.startswith(probe.TESTED):
        said = probe.said_by_child()
        if said is not None:
            return said
    return try_registration()


def try_registration() -> str | None:
    """Return the same of a trial in this process, whatever its release."""
    from bestof.torch.probe import try_all  # noqa: PLC0415 - it needs this module

    conversions = _conversions()
    if conversions is None or not any(map(find_registration, _libraries())):
        return "it lacks the functions that register them"
    if not any(map(find_gradients, _libraries())):
        return "it does not tell whether a gradient is computed"
    return try_all(conversions)


@cache
def onednn() -> Native | None:
    """Return oneDNN's product; None if PyTorch was built without it."""
    return onednn_product() if any(map(find_onednn, _libraries())) else None


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
    conversions = _conversions()
    assert conversions is not None  # else there is no shim
    to_tensors, to_handle = conversions
    handles = [None if one is None else to_handle(one) for one in tensors]
    found = compute(shim, native, handles)
    results = None if found is None else tuple(to_tensors(found))
    return results[0] if results is not None and len(results) == 1 else results


def _libraries() -> list[str]:
    return [str(path) for path in (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")]


@cache
def _conversions() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Return the conversions from handles to tensors and back; None if PyTorch lacks any."""
    module = getattr(torch._C, "_aoti", None)
    names = ("alloc_tensors_by_stealing_from_void_ptrs", "unsafe_alloc_void_ptr_from_tensor")
    if any(not hasattr(module, name) for name in names):
        return None
    libraries = _libraries()
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
    conversions = _conversions()
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
