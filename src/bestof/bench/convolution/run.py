"""One algorithm of one convolution, ready to be timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """One algorithm of one case.

    `call` runs it; `samples` returns some elements of the last result. `work` is the FLOPs that the
    algorithm performs, without its transforms, and `scratch_bytes` the memory that it takes beside
    the arguments; None if unknown. `operands` stay alive for a `call` that knows addresses only.
    """

    call: Callable[[], object]
    samples: Callable[[], list[float]]
    work: float | None = None
    scratch_bytes: int | None = None
    operands: object = None
