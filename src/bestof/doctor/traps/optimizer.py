"""An optimizer that updates each parameter by many operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bestof.doctor.finding import Finding
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap, Treatment
from bestof.recipe.apply import FUSED, fusible


class UnfusedOptimizer(Trap):
    """Tries `fused=True` where PyTorch has it for the CPU."""

    name = "optimizer not fused"
    of_program = True

    def __init__(self) -> None:
        self._unfused: list[dict[str, Any]] = []  # as they were before the trial

    def treatment(self, seen: Seen) -> Treatment | None:
        groups = self._unfused = list(_groups(seen))
        if not groups:
            return None
        before = [group.get("fused") for group in groups]

        def apply() -> None:
            for group in groups:
                group["fused"] = True

        def undo() -> None:
            for group, value in zip(groups, before, strict=True):
                group["fused"] = value

        return Treatment(apply, undo)

    def findings(self, seen: Seen) -> Sequence[Finding]:
        gain = seen.gains.get(self.name)
        names = ", ".join(dict.fromkeys(type(one).__name__ for one in seen.optimizers))
        if not names:
            return [Finding(self.name, False, None, "the program has stepped no optimizer")]
        if gain is None and (self._unfused or any(_groups(seen))):
            return [Finding(self.name, None, None, f"{names}: not fused")]
        if gain is None:
            told = f"{names}: fused already, or PyTorch has no fused form for it"
            return [Finding(self.name, False, None, told)]
        cure = f"{names}(..., fused=True)" if gain.is_real else ""
        told = f"{names}: {gain.told}"
        return [Finding(self.name, gain.is_real, gain.factor, told, cure)]


def _groups(seen: Seen) -> Iterator[dict[str, Any]]:
    """Yield the groups of parameters that could be fused and are not."""
    for optimizer in seen.optimizers:
        if type(optimizer) in FUSED:
            for group in optimizer.param_groups:
                if not group.get("fused") and not group.get("foreach") and fusible(group):
                    yield group
