"""Ranges with a name among the events of PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

# Begins and ends a range of PyTorch's profiler. `record_function` takes ten times as long, which
# a profile would show as unexplained time between the operations.
new_range: Callable[[str], AbstractContextManager[object]] = getattr(
    torch._C._profiler, "_RecordFunctionFast", torch.profiler.record_function
)
