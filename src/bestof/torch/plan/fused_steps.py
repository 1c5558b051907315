"""Notices steps of fused optimizers, which change parameters and leave their versions as they were.

PyTorch counts every write in place, and bestof compares these counts: `tensor._version`. It does
not count the writes of `torch._fused_adam_` and its like, which optimizers with `fused=True` call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle


class _State:
    handle: RemovableHandle | None = None
    total = 0
    # How many fused steps each optimizer has taken.
    steps: ClassVar[WeakKeyDictionary[Optimizer, int]] = WeakKeyDictionary()


def follow() -> None:
    """Count the steps of fused optimizers from now on. Does nothing if they are counted."""
    if _State.handle is None:
        _State.handle = register_optimizer_step_post_hook(_stepped)


def _stepped(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    if any(group.get("fused") for group in optimizer.param_groups):
        _State.steps[optimizer] = _State.steps.get(optimizer, 0) + 1
        _State.total += 1


class FusedSteps:
    """The steps of fused optimizers before which some tensors are known to be unchanged."""

    def __init__(self) -> None:
        follow()
        self._total = _State.total
        self._steps = _counts()

    def have_changed(self, tensors: Iterable[Tensor], are_unchanged: Callable[[], bool]) -> bool:
        """Return whether a later step has changed one of the tensors.

        are_unchanged: reads all their memory. It is called if an optimizer with one of them has
        taken a step since.
        """
        total = _State.total
        if total == self._total:
            return False
        steps = _counts()  # before the memory is read, which later steps may write to
        stepped = [one for one in steps if self._steps.get(one) != steps[one]]
        memory = set(map(_address, tensors))
        concerned = any(
            _address(parameter) in memory
            for optimizer in stepped
            for group in optimizer.param_groups
            for parameter in group["params"]
        )
        if concerned and not are_unchanged():
            return True
        self._steps, self._total = steps, total
        return False


def _counts() -> WeakKeyDictionary[Optimizer, int]:
    """Return a copy of the counts of all optimizers."""
    return _State.steps.copy()


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage; 0 if it has none, as tensors of other devices."""
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:  # of a subclass without memory of its own
        return 0
