"""Denormal numbers, which many processors compute far slower than others."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bestof.doctor.finding import Finding
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap, Treatment
from bestof.torch.process.openmp import on_each_thread


class Denormals(Trap):
    """Counts them in parameters, gradients and results, and tries to flush them to zero."""

    name = "denormal numbers"
    of_program = True

    def treatment(self, seen: Seen) -> Treatment | None:
        if not seen.denormals:
            return None

        def flush(wanted: bool) -> None:
            on_each_thread(lambda: torch.set_flush_denormal(wanted), seen.threads)

        return Treatment(lambda: flush(True), lambda: flush(False))

    def findings(self, seen: Seen) -> Sequence[Finding]:
        if not seen.sampled:
            return [Finding(self.name, None, None, "no float32 element was looked at")]
        gain = seen.gains.get(self.name)
        share = seen.denormals / seen.sampled
        told = f"{share:.2%} of the elements of parameters, gradients and results are denormal"
        caught = gain is not None and gain.is_real
        if gain is not None:
            told += f"; {gain.told}"
        cure = "torch.set_flush_denormal(True), before the first computation"
        return [
            Finding(self.name, caught, gain.factor if gain else None, told, cure if caught else "")
        ]
