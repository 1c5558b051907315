"""Wraps the C++ kernels that answer decided convolutions and products without Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bestof.selection.state.registry import Defaults
from bestof.torch._shim import (
    ASKED_EVERY,
    PRODUCTS,
    AttentionShim,
    ConvolutionShim,
    Count,
    Loan,
    NativeAttention,
    NativeConvolution,
    NativeProduct,
    ProductShim,
    Shim,
    Watch,
    compute_attention,
    compute_convolution,
    compute_product,
    find,
    find_gradients,
    find_guards,
    find_onednn,
    find_registration,
    find_tensor_version,
    make_attention_shim,
    make_product_shim,
    make_watch,
    memory_sample,
    onednn_product,
    planned_product,
)

__all__ = [
    "ASKED_EVERY",
    "PRODUCTS",
    "AttentionShim",
    "ConvolutionShim",
    "Count",
    "Loan",
    "NativeAttention",
    "NativeConvolution",
    "NativeProduct",
    "ProductShim",
    "Shim",
    "Watch",
    "attention_by",
    "convolution_by",
    "dense_bytes",
    "make_attention",
    "make_products",
    "make_shim",
    "onednn",
    "planned_product",
    "product_by",
    "sample_of",
    "watch",
]

# Products are registered by C++ functions, whose types have the layout of these releases.
_CPP_RELEASES = ("2.13.",)


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


def make_products(answer: Callable[..., Any], kernels: list[Any], least: int) -> ProductShim | None:
    """Return a shim that asks `answer` for products of at least `least` multiply-adds.

    `kernels` are PyTorch's own, from torch.library.get_kernel, in the order of PRODUCTS. Returns
    None if this release of PyTorch lacks the functions that register C++ kernels, or if another
    library has replaced one of PyTorch's kernels.
    """
    conversions = _conversions()
    if conversions is None or not _registers_cpp() or not any(map(find_gradients, _libraries())):
        return None
    return make_product_shim(*conversions, answer, kernels, least, Defaults.first_only)


def make_attention(
    is_backward: bool, answer: Callable[..., Any], kernel: Any, least: int
) -> AttentionShim | None:
    """Return a shim that asks `answer` for attention of at least `least` multiply-adds.

    It answers the forward or the backward pass.
    `kernel` is PyTorch's own, from torch.library.get_kernel. Returns None as `make_products` does.
    """
    conversions = _conversions()
    if conversions is None or not _registers_cpp():
        return None
    return make_attention_shim(
        is_backward, *conversions, answer, kernel, least, Defaults.first_only
    )


def _registers_cpp() -> bool:
    is_known = torch.__version__.startswith(_CPP_RELEASES)
    return is_known and any(map(find_registration, _libraries()))


@cache
def onednn() -> NativeProduct | None:
    """Return oneDNN's product; None if PyTorch was built without it."""
    return onednn_product() if any(map(find_onednn, _libraries())) else None


def product_by(
    shim: ProductShim,
    native: NativeProduct,
    operation: str,
    bias: Tensor | None,
    a: Tensor,
    b: Tensor,
) -> Tensor | None:
    """Return what settled calls of a product get from a kernel; None if it refuses.

    It refuses if the shim has not been lent the packed matrix that it reads.
    """
    place = PRODUCTS.index(operation)
    found = _computed(compute_product, shim, native, place, tensors=(bias, a, b))
    return None if found is None else found[0]


def attention_by(
    native: NativeAttention, tensors: Sequence[Tensor | None]
) -> tuple[Tensor, ...] | None:
    """Return what settled calls of attention get from a kernel; None if it refuses.

    The tensors are those of the pass, and the mask, which may be None.
    """
    found: tuple[Tensor, ...] | None
    found = _computed(compute_attention, native, tensors=tensors)
    return found


def convolution_by(
    shim: ConvolutionShim,
    native: NativeConvolution,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> Tensor | None:
    """Return what settled calls of a convolution get from a kernel; None if it refuses.

    It refuses if the shim has not been lent the packed weights that it reads.
    """
    found = _computed(compute_convolution, shim, native, tensors=(input, weight, bias))
    return None if found is None else found[0]


def _computed(
    compute: Callable[..., Any], *arguments: Any, tensors: Sequence[Tensor | None]
) -> Any:
    """Return the tensors that C++ has computed; None if the kernel refused."""
    conversions = _conversions()
    assert conversions is not None  # else there is no shim
    to_tensors, to_handle = conversions
    result = compute(*arguments, [to_handle(one) for one in tensors if one is not None])
    return None if result is None else tuple(to_tensors(result))


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
