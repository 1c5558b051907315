"""Measures calls on a CUDA device, with events before and after them in their stream.

Recording an event puts a mark into the stream. A query whether the device has passed it does not
wait.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_capturing() -> bool:
    """Return whether the current stream of this thread is being captured into a graph."""
    cuda: Any = torch.cuda  # partly without annotations
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


class CudaTiming:
    """The two marks around one call, in the stream that was current when it began."""

    __slots__ = ("_begin", "_end", "_stream")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        cuda: Any = torch.cuda  # partly without annotations
        self._begin = cuda.Event(enable_timing=True)
        self._end = cuda.Event(enable_timing=True)
        self._begin.record(stream)

    def stop(self) -> None:
        self._end.record(self._stream)

    def seconds(self) -> float | None:
        """Return the time between the marks, or None until the device has passed the second one."""
        if not self._end.query():
            return None
        milliseconds: float = self._begin.elapsed_time(self._end)
        return milliseconds / 1e3


class CudaTimer:
    """Times calls in the current stream of the device of their first tensor."""

    @property
    def paused(self) -> bool:
        """Whether the current stream is being captured into a graph.

        A query about an event would break the capture, and a captured event would be replayed each
        time.
        """
        return is_capturing()

    def start(self, args: tuple[Any, ...]) -> CudaTiming:
        """Put the first mark."""
        device = next(arg.device for arg in args if isinstance(arg, Tensor))
        return CudaTiming(torch.cuda.current_stream(device))
