"""The inputs that a program changes, and the calls that it therefore refuses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import Node

from bestof.errors import TorchError
from bestof.torch.plan.trace.mutation import changed_argument, root_of

_OVERLAPS = 1  # what PyTorch's own check returns


class ChangedInputs:
    """The places of the inputs that a program changes.

    Each call asks `check` before the first step. A program takes its inputs for separate memory.
    If two inputs share memory and one is changed, the other would show the change too early or
    too late.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        inputs = [node for node in nodes if node.op == "placeholder"]
        changed = {root_of(one) for node in nodes if (one := changed_argument(node)) is not None}
        self.places = [place for place, node in enumerate(inputs) if node in changed]
        # The same for all strides that a program serves: those of axes of extent 1 do not matter.
        self._extents = [_extent(node.meta["val"]) for node in inputs] if self.places else []
        self._apart: set[tuple[int, int, int]] = set()

    def copied(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs with copies of those that are changed, for runs that must not."""
        copies = list(inputs)
        for place in self.places:
            one = inputs[place]
            copies[place] = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype)
            copies[place].copy_(one.detach())
        return copies

    def check(self, inputs: Sequence[Tensor]) -> None:
        """Raise TorchError, before anything is changed, for inputs that cannot be changed."""
        for place in self.places:
            one = inputs[place]
            if one.is_neg() or one.is_conj():
                raise TorchError(
                    f"optimize: the plan changes input {place}, which is a conjugated or negated "
                    "view; pass input.resolve_conj().resolve_neg(), and read the changes from it"
                )
            if one.is_inference() and not torch.is_inference_mode_enabled():
                raise TorchError(
                    f"optimize: the plan changes input {place}, which was made in inference mode; "
                    "call the plan under torch.inference_mode(), or pass input.clone()"
                )
            if torch._debug_has_internal_overlap(one) == _OVERLAPS:
                raise TorchError(
                    f"optimize: the plan changes input {place}, of which several elements lie at "
                    "one address, as after `expand`; pass input.contiguous()"
                )
        if self.places:
            self._refuse_shared_memory(inputs)

    def _refuse_shared_memory(self, inputs: Sequence[Tensor]) -> None:
        starts = [one.data_ptr() for one in inputs]
        before: list[int] = []  # the inputs that reach into what follows, in the order of memory
        for place in sorted(range(len(inputs)), key=starts.__getitem__):
            if not self._extents[place]:
                continue
            before = [one for one in before if starts[one] + self._extents[one] > starts[place]]
            for other in before:
                if place not in self.places and other not in self.places:
                    continue
                key = other, place, starts[place] - starts[other]
                if key not in self._apart:
                    if _overlap(inputs[other], inputs[place], key[2]):
                        self._raise(*sorted((other, place)))
                    self._apart.add(key)
            before.append(place)

    def _raise(self, one: int, other: int) -> None:
        changed = one if one in self.places else other
        raise TorchError(
            f"optimize: inputs {one} and {other} share memory, and the plan changes input "
            f"{changed}; a plan takes its inputs for separate memory: pass a clone of one, or give "
            "the model one input and let it take the parts"
        )


def _extent(one: Tensor) -> int:
    """Return the bytes from the first element of a tensor to the end of the last."""
    if one.numel() == 0:
        return 0
    steps = zip(one.shape, one.stride(), strict=True)
    return (1 + sum((extent - 1) * stride for extent, stride in steps)) * one.element_size()


def _overlap(first: Tensor, second: Tensor, distance: int) -> bool:
    """Return whether tensors share a byte; the second begins `distance` bytes behind the first."""
    used = torch.zeros(max(_extent(first), distance + _extent(second)), dtype=torch.bool)
    _bytes_of(used, 0, first).fill_(value=True)
    return bool(_bytes_of(used, distance, second).any())


def _bytes_of(used: Tensor, start: int, one: Tensor) -> Tensor:
    """Return the places of a tensor's bytes."""
    size = one.element_size()
    strides = [size * stride for stride in one.stride()]
    return used.as_strided((*one.shape, size), (*strides, 1), start)
