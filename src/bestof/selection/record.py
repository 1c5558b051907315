"""What outlives the process: the evidence of each alternative for one problem, and the decision
made from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Child:
    """Another selector's problem that was met inside the trials of an alternative."""

    selector: str
    problem: str


def sorted_children(children: Iterable[Child]) -> tuple[Child, ...]:
    """Return the children in the order in which they are stored."""
    return tuple(sorted(children, key=lambda child: (child.selector, child.problem)))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one alternative for one problem.

    `samples` are seconds, one a counted trial (for a group: a whole pass, its stages summed), in
    the order taken. `version` is what the alternative says it depends on; evidence of another
    version is not believed. `disqualified` is the reason why the alternative was taken out, None
    where it was not. Without samples and reason, it was left out of the search that led to the
    decision, and the decision was made knowing of it.
    """

    alternative: str
    version: str
    samples: tuple[float, ...] = ()
    disqualified: str | None = None
    children: tuple[Child, ...] = ()

    @property
    def left_out(self) -> bool:
        """Whether a search passed it over, as hopeless at a neighbour."""
        return not self.samples and self.disqualified is None

    @property
    def seconds(self) -> float | None:
        """The median of the samples; None without any."""
        return median(self.samples) if self.samples else None


@dataclass(frozen=True, slots=True)
class Record:
    """One problem of one selector on one host.

    `problem` is canonical text (see `problem.py`). `decision` is the name of the chosen
    alternative, None while the search goes on. `updated` is seconds since the epoch.
    """

    selector: str
    problem: str
    host: str
    decision: str | None
    evidence: tuple[Evidence, ...]
    updated: float

    @property
    def key(self) -> tuple[str, str, str]:
        """What a store finds this record by; also the order in which records are listed."""
        return (self.selector, self.problem, self.host)

    def absorb(self, newer: Record) -> Record:
        """This record after `newer`, of the same key, was saved over it: the rule that every store
        follows.

        Evidence is replaced alternative by alternative, whatever its version; what `newer` does not
        mention stays, and so does evidence of the same version for what it left out. A decision is
        only replaced by another: a save while a race is open again (decision None) leaves the old
        one in force. But a decision is withdrawn where `newer` disqualifies the alternative that it
        names.
        """
        evidence = {item.alternative: item for item in self.evidence}
        for item in newer.evidence:
            old = evidence.get(item.alternative)
            if old is None or not item.left_out or item.version != old.version:
                evidence[item.alternative] = item
        decision = self.decision if newer.decision is None else newer.decision
        if decision is not None and any(
            item.alternative == decision and item.disqualified is not None
            for item in newer.evidence
        ):
            decision = None
        return Record(*self.key, decision, tuple(evidence.values()), newer.updated)


@dataclass(frozen=True, slots=True)
class Pin:
    """A user's order to take one alternative without measuring. None stands for every problem, or
    for every host."""

    selector: str
    alternative: str
    problem: str | None = None
    host: str | None = None
