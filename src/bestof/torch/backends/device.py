"""A kind of device: its dispatch key, and what the times of its kernels depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from torch import Tensor

from bestof.selection.trials.timer import Timer


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device.

    key: PyTorch's dispatch key of its tensors.
    prefix: how the names of its selectors begin; empty for the CPU.
    holds: returns whether alternatives may be tried on a tensor: it is on this device.
    name: returns the name of a tensor's device with the settings that change its times; empty for
        the CPU.
    depends: returns texts that the speed of its kernels depends on.
    timer: the timer of its calls, or None for the clock.
    """

    key: str
    prefix: str
    holds: Callable[[Tensor], bool]
    name: Callable[[Tensor], str]
    depends: Callable[[], tuple[str, ...]]
    timer: Timer | None = None


CPU = Device("CPU", "", attrgetter("is_cpu"), lambda _: "", lambda: ())
"""The processor."""
