"""Tuning for the whole process, or for a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bestof.torch.override import ConvolutionOverride

_lock = threading.Lock()


class _State:
    override: ConvolutionOverride | None = None
    depth = 0


def enable() -> None:
    """From now on every 2-D convolution on the CPU, in training and in inference, is chosen among alternatives.

    Enabling twice is the same as once. What was found out before stays known.
    """
    with _lock:
        _enter()
        _State.depth = max(_State.depth, 1)


def disable() -> None:
    """Put PyTorch's own kernels back. What was found out stays known; disabling twice is the same as once."""
    with _lock:
        if _State.override is not None:
            _State.override.remove()
        _State.depth = 0


@contextmanager
def enabled() -> Iterator[None]:
    """Tuning inside a `with` block; blocks may nest."""
    with _lock:
        _enter()
        _State.depth += 1
    try:
        yield
    finally:
        with _lock:
            _State.depth = max(0, _State.depth - 1)
            if _State.depth == 0 and _State.override is not None:
                _State.override.remove()


def convolution_override() -> ConvolutionOverride | None:
    """What was enabled in this process, now or before; None where nothing ever was."""
    return _State.override


def _enter() -> None:
    if _State.override is None:
        _State.override = ConvolutionOverride()
    if _State.depth == 0:
        _State.override.register()
