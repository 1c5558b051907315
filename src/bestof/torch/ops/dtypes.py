"""The types of numbers that a row has, as columns: of operands, of results, and of sums.

These are the columns of YNNPACK's tables of kernels (`bfloat16, bfloat16, float`). One more dtype
of an operation is a kernel and its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch


class Dtypes(NamedTuple):
    """The names of the types of operands, of results, and of the sums between them."""

    operands: str
    result: str
    sums: str


FLOAT64 = Dtypes("float64", "float64", "float64")
FLOAT32 = Dtypes("float32", "float32", "float32")
BFLOAT16 = Dtypes("bfloat16", "bfloat16", "float32")
FLOAT16 = Dtypes("float16", "float16", "float32")

WIDE = FLOAT32, FLOAT64
"""The columns of formulas whose partial results have the type of the operands."""
HALVES = BFLOAT16, FLOAT16
"""The columns of rows that compute in float32 and round each result once."""


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def words_of(dtype: torch.dtype) -> list[str]:
    """Return the words of a problem's text that tell its dtype: none for float32."""
    name = name_of(dtype)
    return [] if name == FLOAT32.operands else [name]


def dtype_of(problem: Any) -> str:
    """Return the name of the dtype of a problem's operands; float32 if the problem names none."""
    name: str = getattr(problem, "dtype", FLOAT32.operands)
    return name


def own(name: str) -> Dtypes:
    """Return the types of PyTorch's own kernel for operands of a type."""
    return Dtypes(name, name, name if name == FLOAT64.sums else FLOAT32.sums)


def is_rounded(name: str) -> bool:
    """Return whether sums of operands of a type are taken in another type, and rounded once."""
    return own(name).sums != name


def of_operands(columns: Iterable[Dtypes]) -> frozenset[torch.dtype]:
    """Return the dtypes of operands."""
    return frozenset(getattr(torch, one.operands) for one in columns)


SHORT = of_operands(HALVES)
"""The dtypes of tensors whose sums are taken in another type, and rounded once."""
