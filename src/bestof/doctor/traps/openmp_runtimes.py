"""Two OpenMP runtimes in one process, each with threads of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from bestof.doctor.finding import Finding
from bestof.doctor.seen import Seen
from bestof.doctor.trap import Trap
from bestof.selection.duration import duration
from bestof.torch.process.openmp import empty_region, runtimes

_REGIONS, _LONGEST = 200, 0.2  # regions of each runtime, seconds
_DEARER = 1.5  # times of regions vary by less, on a machine with neighbours too


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
        told = f"{' and '.join(found)} are loaded. If both compute in turn, a parallel region "
        told += f"takes {duration(turns)} in place of {duration(alone)}"
        # threadpool_limits(1) would take PyTorch's threads away, too.
        cure = f"ThreadpoolController().select(filepath={found[1]!r}).limit(limits=1), of the "
        cure += f"package threadpoolctl; or packages that use {Path(found[0]).name} too"
        caught = turns > _DEARER * alone
        # The factor of a step is not known: the doctor does not see which regions it has.
        return [Finding(self.name, caught, None, told, cure if caught else "")]


def _seconds(regions: Sequence[Callable[[], object]]) -> float:
    began, count = perf_counter(), 0
    # Beside neighbours, threads that spin make a region take 10 ms.
    while count < _REGIONS and perf_counter() < began + _LONGEST:
        for region in regions:
            region()
        count += 1
    return (perf_counter() - began) / (count * len(regions))
