"""The records of a store: the evidence for one problem, and the decision made from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

_SLOW_FIRST = 1.5  # times the fastest: a first call above this compiled something


@dataclass(frozen=True, slots=True)
class Child:
    """A problem of another selector that was met inside the trials of an alternative."""

    selector: str
    problem: str


def settled_samples(samples: Sequence[float]) -> Sequence[float]:
    """Return the samples without a slow first one."""
    slow = len(samples) > 1 and samples[0] > _SLOW_FIRST * min(samples)
    return samples[1:] if slow else samples


def sorted_children(children: Iterable[Child]) -> tuple[Child, ...]:
    """Return the children in the order in which they are stored."""
    return tuple(sorted(children, key=lambda child: (child.selector, child.problem)))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one alternative for one problem.

    `samples` are the seconds of the counted trials, in the order taken. For a group, a sample is a
    whole pass: the sum of its stages. `version` is the identity of the alternative; evidence for
    another version is not used. `disqualified` is the reason why the alternative is out, or None.
    Without samples and without a reason, the search left the alternative out on purpose.
    """

    alternative: str
    version: str
    samples: tuple[float, ...] = ()
    disqualified: str | None = None
    children: tuple[Child, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return the same content as dicts, tuples, texts and numbers, ready for JSON."""
        own = {name: getattr(self, name) for name in self.__slots__}
        children = [{"selector": one.selector, "problem": one.problem} for one in self.children]
        return {**own, "children": children}

    @property
    def left_out(self) -> bool:
        """Whether a search skipped this alternative, because it was far too slow for a similar
        problem."""
        return not self.samples and self.disqualified is None

    @property
    def seconds(self) -> float | None:
        """The median of the samples without a slow first one, or None without samples."""
        return median(settled_samples(self.samples)) if self.samples else None


@dataclass(frozen=True, slots=True)
class Record:
    """One problem of one selector on one host.

    `problem` is canonical text (see `problem.py`). `decision` is the name of the chosen
    alternative, or None while the search goes on. `updated` is seconds since the epoch.
    """

    selector: str
    problem: str
    host: str
    decision: str | None
    evidence: tuple[Evidence, ...]
    updated: float

    @property
    def key(self) -> tuple[str, str, str]:
        """The key of this record in a store. Records are listed in the order of their keys."""
        return (self.selector, self.problem, self.host)

    def to_dict(self) -> dict[str, object]:
        """Return the same content as dicts, tuples, texts and numbers, ready for JSON.

        Ten times as fast as `dataclasses.asdict`, which copies every number.
        """
        own = {name: getattr(self, name) for name in self.__slots__}
        return {**own, "evidence": [item.to_dict() for item in self.evidence]}

    def absorb(self, newer: Record) -> Record:
        """Return this record after `newer`, of the same key, was saved over it.

        Every store follows this rule. Evidence is replaced one alternative at a time, whatever its
        version. Evidence stays if `newer` does not mention the alternative, or if `newer` left out
        the same version.

        A decision stays until `newer` brings another one. A save while a race is open again
        (decision None) keeps the old decision. If `newer` disqualifies the decided alternative,
        there is no decision any more.
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
    """A user's order to take one alternative without measuring.

    `problem` and `host` restrict it. None stands for all of them.
    """

    selector: str
    alternative: str
    problem: str | None = None
    host: str | None = None
