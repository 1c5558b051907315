"""Something that can be timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """One algorithm of one case. `samples` tells some elements of the last result; `work` is how many FLOPs the
    algorithm performs, its transforms left out, and `scratch_bytes` its memory beside the arguments, None where nobody
    tells. `operands` are kept alive for `call`, which knows addresses only."""

    call: Callable[[], object]
    samples: Callable[[], list[float]]
    work: float | None = None
    scratch_bytes: int | None = None
    operands: object = None
