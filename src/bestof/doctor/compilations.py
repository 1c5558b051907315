"""What PyTorch's compiler has counted in this process."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compilations:
    """Compilations and their seconds, functions left to Python, graph breaks and the first one."""

    total: int
    failed: int
    breaks: int
    first_break: str
    seconds: float


def compilations() -> Compilations | None:
    """Return what has been counted so far; None if nothing was compiled."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None)
    if not counters or not counters.get("frames"):
        return None
    frames, breaks = counters["frames"], counters["graph_break"]
    total, first = frames["total"], " ".join(next(iter(breaks), "").split())
    failed = total - frames["ok"]
    return Compilations(total, failed, sum(breaks.values()), first, _seconds(dynamo))


def _seconds(dynamo: object) -> float:
    times: dict[str, list[float]] = getattr(dynamo, "compilation_time_metrics", {})
    outer: list[float] = next(
        (one for name, one in times.items() if name.endswith("compile_inner")), []
    )
    return float(sum(outer))
