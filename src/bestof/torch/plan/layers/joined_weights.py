"""The weights of linear layers that read the same input, as one product."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from bestof.torch.plan.layers.frozen_weights import FrozenWeights, Packed
from bestof.torch.plan.trace.graph import MULTIPLIED


class JoinedWeights(FrozenWeights):
    """The weights of several linear layers, one below the other: (sum of O, I).

    `weight` has a shape and no data. The joined matrix exists while its rows are packed, and stays
    only if an algorithm reads this layout; such a matrix counts as packed weights. The parts keep
    the model's own tensors. If one of them changes, `TorchError` is raised as for a single layer.
    """

    def __init__(self, parts: Sequence[FrozenWeights]) -> None:
        dtypes = {part.weight.dtype for part in parts}
        if len(parts) < 2 or len(dtypes) > 1 or not all(map(_can_be_joined, parts)):
            raise ValueError("weights that are joined must be matrices of one type without a norm")
        self.parts = tuple(parts)
        (inner,) = {part.weight.shape[1] for part in parts}
        outer = sum(part.weight.shape[0] for part in parts)
        weight = torch.empty(outer, inner, dtype=dtypes.pop(), device="meta")
        super().__init__(weight, _joined_bias(parts), None, 1)

    def check(self) -> None:
        """Raise TorchError if a tensor of a part was changed in place since, or released."""
        super().check()
        for part in self.parts:
            part.check()

    @property
    def is_released(self) -> bool:
        """Whether the parts are gone, and only packed weights are left."""
        return not self.parts

    @property
    def watched(self) -> list[Tensor]:
        """The weights of the parts."""
        return [part.weight for part in self.parts]

    def release(self, packed: Iterable[Packed]) -> None:
        """Keep these layouts, and drop the parts."""
        self._held, self.parts = tuple(packed), ()

    def folded(self) -> Tensor:
        """Return the joined matrix, a copy."""
        self.check()
        return torch.cat([part.folded() for part in self.parts])


def _can_be_joined(part: FrozenWeights) -> bool:
    weight, bias = part.weight, part.bias
    plain = type(part) is FrozenWeights and part.norm is None and part.groups == 1
    return (
        plain
        and weight.dim() == 2
        and weight.dtype in MULTIPLIED
        and (bias is None or (bias.dtype is weight.dtype and bias.shape == weight.shape[:1]))
    )


def _joined_bias(parts: Sequence[FrozenWeights]) -> Tensor | None:
    """Return the biases in order, zeros for parts without one; None if no part has one."""
    if all(part.bias is None for part in parts):
        return None
    return torch.cat(
        [
            part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias
            for part in parts
        ]
    )
