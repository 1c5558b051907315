"""Convolutions that PyTorch as is answers, or a kernel of ours, without Python: the compiled side of the override."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bestof.selection.registry import Defaults
from bestof.torch._shim import (
    ASKED_EVERY,
    Count,
    Loan,
    NativeConvolution,
    Shim,
    Watch,
    find,
    find_determinism,
    find_tensor_version,
    make_watch,
)

__all__ = [
    "ASKED_EVERY",
    "Count",
    "Loan",
    "NativeConvolution",
    "Shim",
    "Watch",
    "make_shim",
    "watch",
]


def make_shim(
    forward: Callable[..., Any], backward: Callable[..., Any], kept: dict[Any, Any]
) -> Shim | None:
    """A shim that asks these two for what it does not know, and for training passes while `kept` has anything; for all
    that PyTorch as is was not chosen for, while selectors are to use their first alternatives.

    None where PyTorch does not offer what it is made of, and where somebody else's kernel is in place: by the shim, as
    is means PyTorch's own.
    """
    conversions = _conversions()
    operations = ("aten::convolution", "aten::convolution_backward")
    if conversions is None or any(
        torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU") for name in operations
    ):
        return None
    return Shim(*conversions, forward, backward, kept, Defaults.first_only)


@cache
def _conversions() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """From handles to tensors, and from one back; None where this PyTorch lacks anything that the shim calls."""
    module = getattr(torch._C, "_aoti", None)
    names = ("alloc_tensors_by_stealing_from_void_ptrs", "unsafe_alloc_void_ptr_from_tensor")
    if any(not hasattr(module, name) for name in names):
        return None
    libraries = [str(path) for path in (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")]
    if not any(map(find, libraries)):
        return None
    any(map(find_determinism, libraries))  # without it, kernels of ours are Python's to run
    any(map(find_tensor_version, libraries))  # without it, those that take packed weights are
    return getattr(module, names[0]), getattr(module, names[1])


def watch(
    tensors: Sequence[Tensor], places: Sequence[tuple[dict[str, Any], str]] | None = None
) -> Watch | None:
    """Tells whether all these are unchanged: each still in its place, a dict and a name, where it has one, written to
    as often, its memory where it was. For 218 of them, whose objects have left the caches, it takes 60 to 100 us where
    Python takes 370.

    None where PyTorch does not tell of all of them: of some that were made in inference mode, or in any release that
    lacks what the shim is made of.
    """
    conversions = _conversions()
    if conversions is None or any(one.is_inference() for one in tensors):
        return None
    handles = [conversions[1](one) for one in tensors]
    return make_watch(
        list(tensors), [None] * len(tensors) if places is None else list(places), handles
    )
