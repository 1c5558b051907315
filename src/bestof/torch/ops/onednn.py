"""The oneDNN inside PyTorch: its version, and what it can compute."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch

KNOWN = ("3.12",)
"""The versions of oneDNN whose families were looked into, and swept by `tests/sweep`."""


@cache
def version() -> str:
    """Return major and minor version of the oneDNN inside PyTorch; "" if there is none."""
    found = re.search(r"MKL-DNN v(\d+\.\d+)", torch.__config__.show())
    return "" if found is None else found[1]


def is_known() -> bool:
    """Return whether the faults of the oneDNN inside PyTorch are known."""
    return version() in KNOWN


@cache
def has_float16() -> bool:
    """Return whether PyTorch multiplies in float16 and sums in float32 here."""
    backends: Any = torch.backends  # has no annotations
    return bool(backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_fp16_supported())


def sums_in_float32(dtype: str) -> bool:
    """Return whether PyTorch sums products of a type in float32, or in the type if it is wider."""
    own_sums = {"bfloat16": has_bfloat16, "float16": has_float16}
    return dtype not in own_sums or own_sums[dtype]()


@cache
def has_bfloat16() -> bool:
    """Return whether PyTorch multiplies in bfloat16 and sums in float32 here: from AVX-512 on."""
    backends: Any = torch.backends  # has no annotations
    return bool(backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())
