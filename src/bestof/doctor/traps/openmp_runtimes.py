"""Two OpenMP runtimes in one process, each with threads of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from bestof.doctor.finding import Finding
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap
from bestof.torch.process.openmp import empty_region, runtimes

_REGIONS = 200


class OpenmpRuntimes(Trap):
    """Times parallel regions of two runtimes in turn against as many of one."""

    name = "two OpenMP runtimes"

    def findings(self, seen: Seen) -> Sequence[Finding]:
        found = runtimes()
        if len(found) < 2:
            loaded = found[0] if found else "none"
            return [Finding(self.name, False, None, f"one runtime is loaded: {loaded}")]
        empty = [empty_region(one, seen.threads) for one in found[:2]]
        alone = min(_seconds(empty[:1] * 2) for _ in range(3))
        turns = min(_seconds(empty) for _ in range(3))
        told = f"{' and '.join(found)} are loaded. Where both compute in turn, a parallel region "
        told += f"takes {turns * 1e6:.1f} us in place of {alone * 1e6:.1f}"
        first = Path(found[0]).name
        cure = f"import torch first, and install packages that use {first} too; or limit the "
        cure += "threads of the other one by threadpoolctl.threadpool_limits(1)"
        return [Finding(self.name, True, None, told, cure)]


def _seconds(regions: Sequence[Callable[[], object]]) -> float:
    began = perf_counter()
    for _ in range(_REGIONS):
        for region in regions:
            region()
    return (perf_counter() - began) / (_REGIONS * len(regions))
