"""Run a model in PyTorch's eager mode without a trace: on copies of its inputs and buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bestof.errors import TorchError
from bestof.torch.plan.trace.model_copy import copied_model
from bestof.torch.plan.trace.strides import copied


def eager_outputs(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    known: str = "",
    grad: bool = False,
) -> tuple[list[Any], list[Tensor]]:
    """Return (the flattened outputs of the model, the input tensors as the model leaves them).

    grad: run with gradients, which some of PyTorch's operators answer by other kernels.

    The model runs on copies of its arguments and buffers, so that a model that writes to them
    leaves the originals unchanged. If the model raises, raise TorchError with the first line of
    its error; `known` describes inputs that are known to work.
    """
    given = described(pytree.tree_leaves((args, kwargs)))
    args, kwargs = pytree.tree_map_only(Tensor, _cloned, (args, kwargs))
    memo: dict[int, Any] = {id(one): one for one in model.parameters()}
    memo |= {id(one): one.detach().clone() for one in model.buffers()}
    with torch.set_grad_enabled(grad):
        try:
            outputs = pytree.tree_leaves(copied_model(model, memo)(*args, **kwargs))
            outputs = [one.detach() if isinstance(one, Tensor) else one for one in outputs]
        except Exception as error:
            raise TorchError(
                f"optimize: {type(model).__name__} does not run on {given}: {first_line(error)}"
                f"{known and f'; the plan was made for {known}'}"
            ) from error
    leaves = pytree.tree_leaves((args, kwargs))
    return outputs, [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]


def _cloned(one: Tensor) -> Tensor:
    """Return a copy with the same strides, which some kernels are chosen by."""
    one = one.detach()
    if one.layout is not torch.strided or one.is_conj() or one.is_neg():
        return one.clone()
    try:
        return copied(one, one.stride())
    except RuntimeError:  # elements share memory, as after `unfold`
        return one.clone()


def described(leaves: Sequence[Any]) -> str:
    """Return the shapes and dtypes of flattened inputs, in words."""
    parts = (
        f"{str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}"
        if isinstance(leaf, Tensor)
        else repr(leaf)[:40]
        for leaf in leaves
    )
    return ", ".join(parts) or "no arguments"


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
