"""Notices steps of fused optimizers, which change parameters and leave their versions as they were.

PyTorch counts every write in place, and bestof compares these counts: `tensor._version`. PyTorch
does not count the writes of `torch._fused_adam_` and similar operators, which optimizers with
`fused=True` call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, ClassVar, TypeAlias
from weakref import ref

from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

Steps: TypeAlias = dict[ref[Optimizer], int]
"""The number of the last fused step of each optimizer."""

_numbers = count(1)


class _State:
    handle: RemovableHandle | None = None
    last = 0  # the number of the last step, or of the last end of an optimizer
    ended = 0  # the number of the last end of an optimizer, whose parameters are not known then
    # A plain dict, because threads may step while another copies it.
    steps: ClassVar[Steps] = {}


def follow() -> None:
    """Count the steps of fused optimizers from now on. A second call does nothing."""
    if _State.handle is None:
        _State.handle = register_optimizer_step_post_hook(_stepped)


def _stepped(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    if any(group.get("fused") for group in optimizer.param_groups):
        number = next(_numbers)
        _State.steps[ref(optimizer, _forget)] = number
        _State.last = number


def _forget(ended: ref[Optimizer]) -> None:
    _State.ended = _State.last = next(_numbers)  # first: who misses the entry sees this
    _State.steps.pop(ended, None)


class FusedSteps:
    """The steps of fused optimizers before which some tensors are known to be unchanged."""

    def __init__(self) -> None:
        follow()
        self._last, self._steps, self._ended = _State.last, _State.steps.copy(), _State.ended

    def have_changed(self, tensors: Iterable[Tensor], are_unchanged: Callable[[], bool]) -> bool:
        """Return whether a later step has changed one of the tensors.

        are_unchanged: reads all memory of the tensors. Called if an optimizer with one of them has
        taken a step since, or an optimizer that took steps was freed.
        """
        last = _State.last
        if last == self._last:
            return False
        steps = _State.steps.copy()  # before the memory is read, which later steps may write to
        ended = _State.ended
        stepped = [one() for one in steps if self._steps.get(one) != steps[one]]
        memory = set(map(_address, tensors))
        concerned = ended != self._ended or any(
            _address(parameter) in memory
            for optimizer in stepped
            if optimizer is not None  # else it has ended, which the next question sees
            for group in optimizer.param_groups
            for parameter in group["params"]
        )
        if concerned and not are_unchanged():
            return True
        self._last, self._steps, self._ended = last, steps, ended
        return False


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage; 0 without one, as for tensors of other devices."""
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # of a subclass without memory of its own
        return 0
