"""A model from tensors to tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree


class FlatModel(nn.Module):
    """A model as engines convert it: from the tensors among its inputs to those of its outputs.

    leaves, spec: the flattened inputs of the model, `(args, kwargs)`, and how they nest. What is no
    tensor among them is a constant.
    """

    def __init__(self, model: nn.Module, leaves: Sequence[Any], spec: Any) -> None:
        super().__init__()
        self.training = False  # not `eval`, which exported modules refuse
        self.model = model
        self._leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self._spec = spec
        args, kwargs = pytree.tree_unflatten(list(leaves), spec)
        self._plain = not kwargs and all(isinstance(one, Tensor) for one in args)

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the model with these tensors."""
        if self._plain:
            return tuple(tensors), {}
        leaves = list(self._leaves)
        for place, one in zip(self._places, tensors, strict=True):
            leaves[place] = one
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return args, kwargs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of the model's outputs."""
        args, kwargs = self.arguments(tensors)
        outputs = self.model(*args, **kwargs)
        if isinstance(outputs, Tensor):
            return (outputs,)
        return tuple(one for one in pytree.tree_leaves(outputs) if isinstance(one, Tensor))
