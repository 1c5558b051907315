"""What is known of selectors, as plain values: reports and pictures are drawn from these, and compute nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["chosen", "measured", "pruned", "disqualified", "not applicable", "not tried"]


@dataclass(frozen=True, slots=True)
class AlternativeReport:
    """One alternative on one problem. `seconds` is the median; `speedup` is how many times faster than the first
    alternative (its seconds divided by these), None where either is unknown. `reason` tells why it was disqualified."""

    name: str
    status: Status
    seconds: float | None = None
    spread: float | None = None
    trials: int = 0
    speedup: float | None = None
    reason: str | None = None
    children: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ProblemReport:
    """One problem. `source` says where the decision came from: measured, stored, forced; None while unsettled.

    `children` of an alternative are pairs (selector, problem): the choices met inside it.
    """

    problem: str
    decision: str | None
    source: str | None
    alternatives: tuple[AlternativeReport, ...]

    @property
    def settled(self) -> bool:
        """Whether there is a decision."""
        return self.decision is not None


@dataclass(frozen=True, slots=True)
class SelectorReport:
    """One selector: its problems in the order in which they were met, and the price of finding out.

    `trials` counts timed calls, `trial_seconds` their time, `loss_seconds` the part of it that a call of the chosen
    alternative would not have taken.
    """

    selector: str
    stages: int
    problems: tuple[ProblemReport, ...]
    trials: int = 0
    trial_seconds: float = 0.0
    loss_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """Every selector of a process, or of a store."""

    selectors: tuple[SelectorReport, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same content in dicts, lists, strings and numbers, ready for JSON."""
        return asdict(self)
