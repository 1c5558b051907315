"""The known traps. The order is that of trials: if time is short, the last ones are not tried."""

from __future__ import annotations

from bestof.doctor.trap import Trap
from bestof.doctor.traps.compile_breaks import CompileBreaks
from bestof.doctor.traps.denormals import Denormals
from bestof.doctor.traps.half_types import HalfTypes
from bestof.doctor.traps.inactive import Inactive
from bestof.doctor.traps.loader import StarvingLoader
from bestof.doctor.traps.mkl_on_amd import MklOnAmd
from bestof.doctor.traps.openmp_runtimes import OpenmpRuntimes
from bestof.doctor.traps.optimizer import UnfusedOptimizer
from bestof.doctor.traps.page_faults import PageFaults
from bestof.doctor.traps.shapes import NewShapes
from bestof.doctor.traps.spinning import Spinning
from bestof.doctor.traps.suspects import Suspects
from bestof.doctor.traps.threads import Threads


def traps(of_program: bool) -> list[Trap]:
    """Return the traps, with state of their own. Those of programs only if `of_program`."""
    everything: tuple[Trap, ...] = (
        Spinning(),
        Threads(),
        Denormals(),
        UnfusedOptimizer(),
        PageFaults(),
        StarvingLoader(),
        NewShapes(),
        OpenmpRuntimes(),
        HalfTypes(),
        MklOnAmd(),
        CompileBreaks(),
        Suspects(),
        Inactive(),
    )
    return [one for one in everything if of_program or not one.of_program]
