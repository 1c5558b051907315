"""Arguments of operators, and the descriptions of tensors, as JSON."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from bestof.errors import TorchError
from bestof.processors import available_memory

# Names become names of nodes and of steps in reports; other texts are options such as "reflect",
# and formulas of einsum.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_LABEL = re.compile(rf"{_NAME.pattern}( \+ {_NAME.pattern}){{0,255}}")
_OPTION = re.compile(r"[A-Za-z0-9_ ,.>-]{0,256}")
# Types whose elements are packed, or mean nothing without a scale: no plan computes with them.
_PACKED = re.compile(r"torch\.(q|bits|u?int[1-7]$|float4|float8_e8m0)")
_DEEPEST = 8  # how lists nest

_NO_LIMIT = 2**46  # bytes, where the system does not tell what is left

_CONSTANTS: dict[str, Any] = {
    str(one).removeprefix("torch."): one
    for one in vars(torch).values()
    if isinstance(one, torch.dtype | torch.layout | torch.memory_format)
}


def memory_limit() -> int:
    """Return the bytes that a value of a plan may take: what the machine has left."""
    left = available_memory()
    return _NO_LIMIT if left is None else left


def name_in(value: Any) -> str:
    """Return an identifier of ASCII letters, digits and underscores; ValueError for others."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise ValueError(f"{str(value)[:40]!a} is no name")
    return value


def label_in(value: Any) -> str:
    """Return the label of a step: a name, or those of joined layers; ValueError for others."""
    if not isinstance(value, str) or _LABEL.fullmatch(value) is None:
        raise ValueError(f"{str(value)[:40]!a} is no label of a step")
    return value


def encoded(value: Any) -> Any:
    """Return an argument or a description as JSON; TorchError for what a file cannot hold."""
    if isinstance(value, str) and _OPTION.fullmatch(value) is None:
        raise TorchError(f"save: the text {value[:40]!r} among the arguments cannot be saved")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Node):
        return {"node": value.name}
    if isinstance(value, list | tuple):
        return [encoded(one) for one in value]
    if isinstance(value, dict):
        return {"dict": {key: encoded(one) for key, one in value.items()}}
    if isinstance(value, Tensor):
        described = list(value.shape), list(value.stride()), str(value.dtype)
        return {"tensor": described}
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    raise TorchError(
        f"save: a {type(value).__name__} among the arguments of an operator cannot be saved"
    )


def decoded(value: Any, known: dict[str, Node], most: int, depth: int = 0) -> Any:
    """Return an argument or a description of a JSON value.

    known: the nodes so far, by their names in the file. most: the bytes that a tensor may take.
    ValueError for texts, devices, constants and sizes that no plan holds.
    """
    if depth > _DEEPEST:
        raise ValueError(f"arguments nest deeper than {_DEEPEST} lists")
    if isinstance(value, list):
        return [decoded(one, known, most, depth + 1) for one in value]
    if isinstance(value, str) and _OPTION.fullmatch(value) is None:
        raise ValueError(f"{value[:40]!a} is no option of an operator")
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "node":
        return known[name_in(content)]
    if kind == "dict":
        named = content.items()
        return {name_in(key): decoded(one, known, most, depth + 1) for key, one in named}
    if kind == "complex":
        return complex(*content)
    if kind == "device":
        if content != "cpu":
            raise ValueError("a plan runs on the CPU, and on no other device")
        return torch.device("cpu")
    if kind == "tensor":
        shape, strides, dtype = content
        return _described(shape, strides, dtype, most)
    if kind != "torch":
        raise ValueError(f"{kind[:40]!a} is no kind of an argument")
    return _CONSTANTS[content]


def _described(shape: list[int], strides: list[int], dtype: str, most: int) -> Tensor:
    """Return a tensor without data."""
    kind = dtype_of(dtype)
    expect_size(shape, strides, kind, most)
    return torch.empty_strided(shape, strides, dtype=kind, device="meta")


def expect_size(shape: list[int], strides: list[int], dtype: torch.dtype, most: int) -> None:
    """Raise ValueError if a shape or strides are none, or take more than so many bytes."""
    if any(type(one) is not int or one < 0 for one in (*shape, *strides)):
        raise ValueError("extents and strides must be whole numbers from 0 on")
    elements, reach = 1, 1
    for extent, stride in zip(shape, strides, strict=True):
        elements *= extent
        reach += max(extent - 1, 0) * stride
    if max(elements, reach) * dtype.itemsize > most:
        raise ValueError(
            f"a value of shape {str(shape)[:60]} takes more memory than this machine has left"
        )


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype that prints as `name`."""
    value = _CONSTANTS.get(name.removeprefix("torch."))
    if not isinstance(value, torch.dtype) or _PACKED.match(str(value)):
        raise ValueError(f"{name[:40]!a} is no dtype of a plan")
    return value
