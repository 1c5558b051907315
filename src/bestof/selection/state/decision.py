"""The decision for one problem, with the evidence behind it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

from bestof.selection.duration import duration
from bestof.selection.identity.problem import problem_text
from bestof.selection.state.candidate import CHILDREN_KEPT
from bestof.selection.state.earlier_race import EarlierRace
from bestof.selection.store.record import Child, Evidence, sorted_children


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen alternative for a problem, with the evidence.

    `position` is the place of the alternative in the list. `history` holds the earlier races of
    this process for the same problem: the last sixteen, oldest first. `trials` is the number of
    timed calls of this process before it.
    """

    problem: Hashable
    alternative: str
    position: int
    source: str
    evidence: tuple[Evidence, ...]
    history: tuple[EarlierRace, ...] = ()
    trials: int = 0

    @property
    def seconds(self) -> float | None:
        """The median of the chosen alternative; None if it was not measured."""
        return next(
            (one.seconds for one in self.evidence if one.alternative == self.alternative), None
        )

    @property
    def is_ordered(self) -> bool:
        """Whether the user has ordered the alternative, so that no race was won."""
        return self.source in ("forced", "pinned")

    @property
    def gain(self) -> float | None:
        """The seconds that the decision saves in one call, or one pass of a group.

        This is the median of the first alternative that applies, less that of the chosen one. None
        if either was not measured.
        """
        first, chosen = self.evidence[0].seconds if self.evidence else None, self.seconds
        return None if first is None or chosen is None else first - chosen

    def gain_text(self) -> str:
        """Return what the decision saves, in words; empty if it saves nothing or is unknown."""
        gain = self.gain
        if gain is None or gain <= 0.0:
            return ""
        return f", saves {duration(gain)} a call over {self.evidence[0].alternative!r}"

    def adopting(self, children: Iterable[tuple[str, Hashable]]) -> Decision:
        """Return the same decision with choices added that its alternative has met since."""
        met = {Child(selector, problem_text(problem)) for selector, problem in children}
        evidence = tuple(
            _adopting(one, met) if one.alternative == self.alternative else one
            for one in self.evidence
        )
        return replace(self, evidence=evidence)


def _adopting(evidence: Evidence, met: set[Child]) -> Evidence:
    more = met.difference(evidence.children)
    if not more or len(evidence.children) >= CHILDREN_KEPT:
        return evidence
    return replace(evidence, children=sorted_children(more.union(evidence.children)))
