"""Freed memory that goes back to the system and is mapped again, page by page."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.doctor.finding import Finding
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap, Treatment
from bestof.torch.process.freed_memory import hand_back_freed, keep_freed

_FEW = 100.0


class PageFaults(Trap):
    """Counts page faults, and tries to keep freed memory in the process."""

    name = "page faults"

    def treatment(self, seen: Seen) -> Treatment | None:
        if _faults(seen) < _FEW:
            return None

        def undo() -> None:
            if self._kept:
                hand_back_freed()

        return Treatment(self._keep, undo)

    def __init__(self) -> None:
        self._kept = False

    def findings(self, seen: Seen) -> Sequence[Finding]:
        if not seen.steps:
            return [Finding(self.name, None, None, "they were not counted")]
        gain = seen.gains.get(self.name)
        told = f"{_faults(seen):.0f} page faults a step"
        caught = gain is not None and gain.is_real
        if gain is not None:
            told += f"; {gain.told}"
        cure = "bestof.torch.enable(), or MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1 in the "
        cure += "environment: freed memory stays in the process"
        return [
            Finding(self.name, caught, gain.factor if gain else None, told, cure if caught else "")
        ]

    def _keep(self) -> None:
        self._kept = keep_freed()


def _faults(seen: Seen) -> float:
    return seen.faults / max(1, seen.steps)
