"""PyTorch's own kernels, called past the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from bestof.errors import TorchError

Kernel: TypeAlias = Callable[..., Any]
"""PyTorch's own kernel of an operator, called with the operator's arguments by position."""


def kernels_of(operators: Sequence[str], key: str = "CPU") -> list[Any]:
    """Return the kernels in place at present for a dispatch key.

    They are PyTorch's own unless something was enabled before. Raises TorchError if PyTorch cannot
    hand its kernels out.
    """
    if not hasattr(torch.library, "get_kernel"):
        raise TorchError(
            f"PyTorch {torch.__version__} has no torch.library.get_kernel, by which bestof keeps "
            f"PyTorch's own kernels as the first alternatives; install torch 2.13 or newer"
        )
    return [torch.library.get_kernel(name, key) for name in operators]


def keys_of(key: str) -> Any:
    """Return the set that a kernel for a dispatch key is called with."""
    return torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))


KEYS = keys_of("CPU")


def original_of(operator: str, kernel: Any) -> Kernel:
    """Return a kernel of the CPU as a function of positional arguments."""
    call = partial(kernel.call_boxed, KEYS)
    places = [one.name for one in schema_of(operator).arguments if not one.kwarg_only]
    named = [one.name for one in schema_of(operator).arguments if one.kwarg_only]
    if not named:
        return call

    def by_position(*arguments: Any) -> Any:
        by_name = zip(named, arguments[len(places) :], strict=False)
        return call(*arguments[: len(places)], **dict(by_name))

    return by_position


def by_position(operator: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel in Python that hands all arguments of an operator on by position."""
    arguments = schema_of(operator).arguments
    places = sum(not one.kwarg_only for one in arguments)
    named = [(one.name, one.default_value) for one in arguments if one.kwarg_only]
    if not named:
        return function

    def kernel(*given: Any, **names: Any) -> Any:
        rest = (one.default_value for one in arguments[len(given) : places])
        return function(*given, *rest, *(names.get(name, value) for name, value in named))

    return kernel


def schema_of(operator: str) -> Any:
    """Return the schema of an operator such as `aten::mm` or `aten::bernoulli_.float`."""
    name, _, overload = operator.partition(".")
    return torch._C._get_schema(name, overload)


def entry_of(operator: str) -> tuple[str, str, int] | None:
    """Return the name of an operator, the kinds of its arguments, and the number of its results.

    Returns None if it returns anything else than tensors, or takes lists of tensors.
    """
    schema = schema_of(operator)
    types = [str(one.type) for one in schema.arguments]
    if any(str(one.type) != "Tensor" for one in schema.returns) or "List[Tensor]" in types:
        return None
    kinds = "".join("t" if one in ("Tensor", "Optional[Tensor]") else "." for one in types)
    return operator.removeprefix("aten::"), kinds, len(schema.returns)
