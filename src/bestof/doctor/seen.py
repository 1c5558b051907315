"""What was seen of a machine and of a program while it ran."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from bestof.doctor.compilations import Compilations
from bestof.doctor.gain import Gain
from bestof.processors import Room
from bestof.profile.suspect import Suspect


@dataclass(slots=True)
class Call:
    """A call of an outermost module: whether its shapes are new, its elements, its seconds."""

    new: bool
    elements: int
    seconds: float


@dataclass(slots=True)
class Seen:
    """Facts, which `Watch` and `Examination` fill in.

    threads: PyTorch's when the steps were observed. room: how many can run at once.
    steps, seconds, faults, waits: of the turn that was observed: its steps, its seconds, its page
        faults, and the seconds of waiting for loaders; 0 steps if none was observed.
    optimizers: all that the program has stepped. waited: the seconds in which the program has
        waited for loaders since its start; workers: the most workers of a loader.
    calls: of outermost modules. dtypes: of parameters and operands.
    denormals, sampled: denormal float32 elements, and all that were looked at.
    compilations: before steps were profiled, as the hooks of a profile break graphs.
    suspects: of a profile of some steps; None if none was recorded.
    gains: what treatments have gained, by the names of the traps.
    """

    threads: int
    room: Room
    steps: int = 0
    seconds: float = 0.0
    faults: int = 0
    optimizers: list[Any] = field(default_factory=list)
    waits: float = 0.0
    waited: float = 0.0
    workers: int = 0
    calls: list[Call] = field(default_factory=list)
    dtypes: Counter[str] = field(default_factory=Counter)
    denormals: int = 0
    sampled: int = 0
    compilations: Compilations | None = None
    suspects: list[Suspect] | None = None
    gains: dict[str, Gain] = field(default_factory=dict)
