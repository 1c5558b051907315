"""Tuning for the whole process, or for a block."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bestof.torch.override import ConvolutionOverride


class _State:
    lock = threading.Lock()
    override: ConvolutionOverride | None = None
    everywhere = False
    blocks: frozenset[object] = frozenset()  # one token for each `with` block that is open and was not disabled


def enable() -> None:
    """From now on every 2-D convolution on the CPU, in training and in inference, is chosen among alternatives.

    Enabling twice is the same as once. What was found out before stays known. TorchError where PyTorch is too old.
    """
    with _State.lock:
        _turn_on()
        _State.everywhere = True


def disable() -> None:
    """Put PyTorch's own kernels back, also inside of `enabled` blocks. What was found out stays known.

    Disabling twice is the same as once.
    """
    with _State.lock:
        _State.everywhere = False
        _State.blocks = frozenset()
        _turn_off()


@contextmanager
def enabled() -> Iterator[None]:
    """Tuning inside a `with` block, in every thread of the process; blocks may nest. TorchError as `enable`."""
    token = object()
    with _State.lock:
        _turn_on()
        _State.blocks |= {token}
    try:
        yield
    finally:
        with _State.lock:
            _State.blocks -= {token}
            if not _State.everywhere and not _State.blocks:
                _turn_off()


def convolution_override() -> ConvolutionOverride | None:
    """What was enabled in this process, now or before; None where nothing ever was."""
    return _State.override


def _turn_on() -> None:
    if _State.override is None:
        _State.override = ConvolutionOverride()
    _State.override.register()


def _turn_off() -> None:
    if _State.override is not None:
        _State.override.remove()


def _after_fork() -> None:
    _State.lock = threading.Lock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
