"""A torch.compile that breaks graphs, compiles again and again, or falls back."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bestof.doctor.finding import Finding
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap

_MANY = 8
"""PyTorch's limit of compilations of one function; beyond it, the function runs eagerly."""


class CompileBreaks(Trap):
    """Reads what PyTorch's compiler has counted."""

    name = "torch.compile that falls back"
    of_program = True

    def findings(self, seen: Seen) -> Sequence[Finding]:  # noqa: ARG002 - it asks elsewhere
        dynamo = sys.modules.get("torch._dynamo.utils")
        counters = getattr(dynamo, "counters", None)
        if not counters or not counters.get("frames"):
            return [Finding(self.name, False, None, "the program has compiled nothing")]
        frames, breaks = counters["frames"], counters["graph_break"]
        seconds = _compile_seconds(dynamo)
        failed = frames["total"] - frames["ok"]
        told = f"{frames['total']} compilations in {seconds:.1f} s, {sum(breaks.values())} graph "
        told += f"breaks, {failed} functions left to Python"
        caught = bool(breaks or failed or frames["total"] > _MANY)
        if breaks:
            told += f"; the first break: {' '.join(next(iter(breaks)).split())[:120]}"
        cure = "TORCH_LOGS=graph_breaks,recompiles shows each place; mark sizes that change by "
        cure += "torch._dynamo.mark_dynamic, or pad them"
        return [Finding(self.name, caught, None, told, cure if caught else "")]


def _compile_seconds(dynamo: object) -> float:
    times: dict[str, list[float]] = getattr(dynamo, "compilation_time_metrics", {})
    outer: list[float] = next(
        (one for name, one in times.items() if name.endswith("compile_inner")), []
    )
    return float(sum(outer))
