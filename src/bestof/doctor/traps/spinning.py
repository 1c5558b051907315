"""Threads of OpenMP that spin while they wait, beside neighbours that need the processor."""

from __future__ import annotations

import os
from collections.abc import Sequence

from bestof.doctor.finding import Finding
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap, Treatment
from bestof.torch.process.idle_team import IdleTeam, can_help


class Spinning(Trap):
    """Tries short spinning, by an idle team of threads.

    If it helps, the later cures are tried with it: spinning would hide what they gain.
    """

    name = "spinning threads"
    keeps = True

    def __init__(self) -> None:
        self._team = IdleTeam()

    def treatment(self, seen: Seen) -> Treatment | None:
        if seen.threads < 2 or not can_help():
            return None
        return Treatment(self._team.begin, self._team.end)

    def findings(self, seen: Seen) -> Sequence[Finding]:
        gain = seen.gains.get(self.name)
        if gain is None:
            if seen.threads < 2:
                return [Finding(self.name, False, None, "one thread computes")]
            if can_help():
                return [Finding(self.name, None, None, f"{seen.threads} threads compute")]
            told = "the environment says how threads wait, or the OpenMP runtime is not GCC's, or "
            told += "limits leave no room for more threads"
            return [Finding(self.name, False, None, told)]
        load, _, _ = os.getloadavg()
        told = f"{gain.told}; {load:.1f} processes wanted {os.cpu_count()} processors"
        cure = "bestof.torch.enable(), or GOMP_SPINCOUNT=1000 in the environment of the process"
        return [Finding(self.name, gain.is_real, gain.factor, told, cure if gain.is_real else "")]
