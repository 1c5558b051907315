"""A loader that leaves the model waiting."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.doctor.finding import Finding
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap

_SHARE = 0.05


class StarvingLoader(Trap):
    """Measures which share of its time the program waits for batches."""

    name = "starving loader"
    of_program = True

    def findings(self, seen: Seen) -> Sequence[Finding]:
        if not seen.steps:
            return [Finding(self.name, None, None, "the waiting was not measured")]
        if not seen.waits:
            return [Finding(self.name, False, None, "the program has not waited for a DataLoader")]
        share = min(1.0, seen.waits / max(seen.seconds, seen.waits))
        told = f"{share:.0%} of the time goes into waiting for batches, with num_workers="
        told += f"{seen.workers}; without the waiting, steps would take {1 - share:.0%}"
        caught = share > _SHARE
        factor = 1 / (1 - share) if share < 1 else None
        cure = "loader = bestof.torch.tune_dataloader(loader), which finds num_workers"
        return [Finding(self.name, caught, factor, told, cure if caught else "")]
