"""A model's answers by one engine, for inputs of given shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bestof.accuracy import Accuracy
from bestof.errors import TorchError
from bestof.torch.engines.build import build
from bestof.torch.engines.engine import Engine
from bestof.torch.engines.error import error_of
from bestof.torch.engines.flat import FlatModel
from bestof.torch.engines.tolerance import allowed_error
from bestof.torch.engines.travel import Inputs


class Answer:
    """Builds an engine in this process, and gives its outputs the form of the model's.

    known: the error of the engine that a contest has measured and allowed, or None. TorchError if
    the outputs differ from the model's by more.
    """

    def __init__(
        self,
        engine: Engine,
        model: nn.Module,
        inputs: Inputs,
        accuracy: Accuracy,
        known: float | None,
    ) -> None:
        self.engine = engine.name
        leaves, spec = inputs
        flat = FlatModel(model, leaves, spec)
        tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]
        args, kwargs = flat.arguments([one.clone() for one in tensors])
        with torch.no_grad():
            outputs, self._structure = pytree.tree_flatten(model(*args, **kwargs))
        expected = [one for one in outputs if isinstance(one, Tensor)]
        self._others = [None if isinstance(one, Tensor) else one for one in outputs]
        self._places = [place for place, one in enumerate(outputs) if isinstance(one, Tensor)]
        self._call = build(engine, flat, tensors, torch.get_num_threads(), accuracy)
        halves = any(one.dtype in (torch.bfloat16, torch.float16) for one in expected)
        error = error_of(self._call(tensors), expected)
        if not error <= max(allowed_error(accuracy, 0.0, None, halves), 10 * (known or 0.0)):
            raise TorchError(
                f"optimize: {engine.name}: outputs differ from the model's by {error:.1e} of their "
                "root mean square"
            )

    def leaves(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Return the flattened outputs."""
        outputs = list(self._others)
        for place, one in zip(self._places, self._call(tensors), strict=True):
            outputs[place] = one
        return outputs

    def nested(self, outputs: list[Any]) -> Any:
        """Return flattened outputs in the form of the model's."""
        if self._structure.is_leaf():
            return outputs[0]
        return pytree.tree_unflatten(outputs, self._structure)
