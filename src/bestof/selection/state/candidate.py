"""What this process knows of one alternative on one problem."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from bestof.selection.identity.alternative import Alternative, Function
from bestof.selection.identity.problem import problem_text
from bestof.selection.store.record import Child, Evidence, sorted_children

# The most samples that are kept, so that an endless search does not grow. A policy needs far fewer.
SAMPLES_KEPT = 64
# The most children that are kept. A wrapper may meet other problems at every call.
CHILDREN_KEPT = 64


class Candidate:
    """What this process knows of one alternative on one problem.

    `applies` is false if `supports` refused the problem, or if the alternative is left out as
    unpromising and was not admitted since. `samples` are the seconds of the trials
    that counted, those of earlier runs first. `disqualified` is the reason why it is out, and
    `circumstances` tell when and how that happened in this process. `readmitted` is the evidence of
    an earlier process that disqualified it, if it is to be tried again. `children` are the choices
    met inside its trials in this process, `known_children` those of earlier processes. `trusted`
    holds the stages whose result agreed with the first alternative's. `recursive` is true once the
    alternative has called its own selector with the same problem. `calls` is the number of
    its trials since the last decision, `counted` that of those that counted, and `seconds` the time
    of these. `estimate` is its cost for the problem before the first trial, if that is known.
    """

    __slots__ = (
        "alternative",
        "applies",
        "calls",
        "children",
        "circumstances",
        "counted",
        "disqualified",
        "estimate",
        "known_children",
        "readmitted",
        "recursive",
        "samples",
        "seconds",
        "stages",
        "trusted",
    )

    def __init__(
        self, alternative: Alternative, stages: dict[int, Function], *, applies: bool
    ) -> None:
        self.alternative = alternative
        self.stages = stages
        self.applies = applies
        self.samples: list[float] = []
        self.estimate: float | None = None
        self.disqualified: str | None = None
        self.circumstances = ""
        self.readmitted: Evidence | None = None
        self.children: set[tuple[str, Hashable]] = set()
        self.known_children: tuple[Child, ...] = ()
        self.trusted: set[int] = set()
        self.recursive = False
        self.calls = 0
        self.counted = 0
        self.seconds = 0.0

    @classmethod
    def refused(cls, alternative: Alternative, stages: dict[int, Function]) -> Candidate:
        """Return the candidate of an alternative that does not apply.

        All problems that it does not apply to share one, because nothing is ever noted of it. The
        convolutions of PyTorch have 35 alternatives, of which 4 apply to most: a search of them
        took 25 KiB, most of it for the others.
        """
        return cls(alternative, stages, applies=False)

    def admitted(self) -> Candidate:
        """Return a candidate of the same alternative that applies to one problem after all."""
        return Candidate(self.alternative, self.stages, applies=True)

    @property
    def remains(self) -> bool:
        """Whether it may still answer calls."""
        return self.applies and self.disqualified is None

    def adopt(self, children: Iterable[tuple[str, Hashable]]) -> None:
        """Add choices that were met inside it."""
        for child in children:
            if len(self.children) >= CHILDREN_KEPT:
                return
            self.children.add(child)

    def evidence(self) -> Evidence:
        """Return all that is known of it, as a value that can be stored."""
        met = {Child(selector, problem_text(problem)) for selector, problem in self.children}
        samples, children = tuple(self.samples), sorted_children(met.union(self.known_children))
        reason = self.disqualified
        if self.awaits_retry:
            assert self.readmitted is not None
            samples, reason = self.readmitted.samples, self.readmitted.disqualified
        elif reason is not None and self.circumstances:
            reason = f"{reason}, {self.circumstances}"
        return Evidence(self.alternative.name, self.alternative.version, samples, reason, children)

    @property
    def awaits_retry(self) -> bool:
        """Whether an earlier process disqualified it, and this one has not tried it yet."""
        return self.readmitted is not None and self.remains and not self.samples
