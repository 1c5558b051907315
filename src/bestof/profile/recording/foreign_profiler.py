"""Tells a capture before the program starts PyTorch's profiler itself.

PyTorch has one profiler in a process: starting it again discards what it has recorded. So the
capture ends first and keeps its recording, and the program gets a profiler of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch.autograd.profiler as module

_NAME = "_prepare_profiler"


class ForeignProfiler:
    """Calls `before` when the program starts PyTorch's profiler, between `start` and `stop`."""

    def __init__(self, before: Callable[[], object]) -> None:
        self._before = before
        self._process = os.getpid()
        self._original: Callable[..., Any] | None = None

    def start(self) -> None:
        self._original = getattr(module, _NAME, None)
        if self._original is not None:  # a later release of PyTorch may lack it
            setattr(module, _NAME, self._prepare)

    def stop(self) -> None:
        if self._original is not None and getattr(module, _NAME) == self._prepare:
            setattr(module, _NAME, self._original)

    def _prepare(self, *arguments: Any, **keywords: Any) -> Any:
        assert self._original is not None
        if os.getpid() == self._process:
            self._before()
        return self._original(*arguments, **keywords)
