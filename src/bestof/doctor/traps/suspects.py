"""What a profile of some steps suspects: reorders, reference kernels, norms that fell apart."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.doctor.finding import Finding
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap

_TREATED = ("optimizer without fused=True", "more threads than processors")
"""Suspects that have traps of their own, which are measured."""


class Suspects(Trap):
    """The suspects of `bestof profile`, with the time at stake."""

    name = "slow kernels"
    of_program = True

    def findings(self, seen: Seen) -> Sequence[Finding]:
        if seen.suspects is None:
            return [Finding(self.name, None, None, "no step was profiled")]
        found = [one for one in seen.suspects if one.name not in _TREATED]
        if not found:
            return [Finding(self.name, False, None, "a profile of some steps shows no suspect")]
        return [
            Finding(
                one.name,
                True,
                None,
                f"{one.seconds * 1e3:.2f} ms a step are at stake: {one.reason}",
                one.remedy,
            )
            for one in found
        ]
