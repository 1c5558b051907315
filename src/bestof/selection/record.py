"""What outlives the process: the evidence of each alternative for one problem, and the decision made from it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Child:
    """Another selector's problem that was met inside the trials of an alternative."""

    selector: str
    problem: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one alternative for one problem.

    `samples` are seconds, one a counted trial (for a group: a whole pass, its stages summed), in the order taken.
    `version` is what the alternative says it depends on; evidence of another version is not believed.
    `disqualified` is the reason why the alternative was taken out, None where it was not.
    """

    alternative: str
    version: str
    samples: tuple[float, ...] = ()
    disqualified: str | None = None
    children: tuple[Child, ...] = ()

    @property
    def seconds(self) -> float | None:
        """The median of the samples; None without any."""
        return median(self.samples) if self.samples else None


@dataclass(frozen=True, slots=True)
class Record:
    """One problem of one selector on one host.

    `problem` is canonical text (see `problem.py`). `decision` is the name of the chosen alternative, None while the
    search goes on. `updated` is seconds since the epoch.
    """

    selector: str
    problem: str
    host: str
    decision: str | None
    evidence: tuple[Evidence, ...]
    updated: float
