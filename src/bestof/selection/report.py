"""What is known of selectors, as plain values: reports and pictures are drawn from these, and
compute nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from bestof.errors import InvalidArgument
from bestof.selection.duration import duration
from bestof.selection.earlier_race import EarlierRace

Status = Literal["chosen", "measured", "pruned", "disqualified", "not applicable", "not tried"]


@dataclass(frozen=True, slots=True)
class AlternativeReport:
    """One alternative on one problem. `seconds` is the median; `speedup` is how many times faster
    than the first alternative (its seconds divided by these), None where either is unknown.
    `reason` tells why it was disqualified. Status pruned: it left the search before the chosen one
    had all its trials."""

    name: str
    status: Status
    seconds: float | None = None
    spread: float | None = None
    trials: int = 0
    speedup: float | None = None
    reason: str | None = None
    children: tuple[tuple[str, str], ...] = ()

    def line(self, width: int) -> str:
        """As plain text, the name padded to `width`; the chosen one is marked with a star."""
        mark = "*" if self.status == "chosen" else " "
        reason = f": {self.reason}" if self.reason else ""
        if self.seconds is None:
            return f"{mark} {self.name:<{width}}  {self.status}{reason}"
        speedup = "" if self.speedup is None else f"  {self.speedup:.2f}x"
        counted = "1 trial" if self.trials == 1 else f"{self.trials} trials"
        failed = f"  disqualified{reason}" if self.status == "disqualified" else ""
        return (
            f"{mark} {self.name:<{width}}  {duration(self.seconds):>8}  {counted}{speedup}{failed}"
        )


@dataclass(frozen=True, slots=True)
class ProblemReport:
    """One problem. `source` says where the decision came from; None while unsettled.

    measured: by trials of this process. stored: by those of earlier ones. only: nothing else
    remained. forced: by BESTOF_FORCE, by a policy that fixes it, or by the end of a window of
    steps. pinned: by a pin in the store.

    `children` of an alternative are pairs (selector, problem): the choices met inside it.
    `history`: the races of this process before this one, each reopened because the time of its
    winner had drifted. `noisy`: the samples leave it open that another alternative is faster; the
    next run verifies the decision early. `why`: why there is no decision, where that is not only a
    matter of time.
    """

    problem: str
    decision: str | None
    source: str | None
    alternatives: tuple[AlternativeReport, ...]
    history: tuple[EarlierRace, ...] = ()
    noisy: bool = False
    why: str | None = None

    @property
    def settled(self) -> bool:
        """Whether there is a decision."""
        return self.decision is not None

    def lines(self) -> Iterator[str]:
        """As plain text: the decision, then a line an alternative."""
        if self.settled:
            noisy = ", noisy" if self.noisy else ""
            yield f"{self.problem}: {self.decision} ({self.source}{noisy})"
        else:
            yield f"{self.problem}: unsettled{f', {self.why}' if self.why else ''}"
        width = max(len(alternative.name) for alternative in self.alternatives)
        for alternative in self.alternatives:
            yield "  " + alternative.line(width)
        for reopening in self.history:
            yield f"  earlier {reopening}"

    def __str__(self) -> str:
        return "\n".join(self.lines())


@dataclass(frozen=True, slots=True)
class SelectorReport:
    """One selector: its problems in the order in which they were met, and the price of finding out.

    `trials` counts timed calls, `trial_seconds` their time, `loss_seconds` the part of it that a
    call of the chosen alternative would not have taken. `settled_calls` went straight to a winner;
    `saved_seconds` estimates what they saved, as the difference of the medians of the first
    alternative and the winner's times their number; it is below zero where a slower alternative was
    ordered.
    """

    selector: str
    stages: int
    problems: tuple[ProblemReport, ...]
    trials: int = 0
    trial_seconds: float = 0.0
    loss_seconds: float = 0.0
    settled_calls: int = 0
    saved_seconds: float = 0.0

    def lines(self) -> Iterator[str]:
        """As plain text: every problem, then the price of finding out."""
        yield self.selector
        for problem in self.problems:
            for line in problem.lines():
                yield "  " + line
        if self.trials:
            took, lost = duration(self.trial_seconds), duration(self.loss_seconds)
            yield f"  {self.trials} trials took {took}, of which {lost} were lost"
        if self.saved_seconds:
            verb = "saved" if self.saved_seconds > 0 else "cost"
            about = duration(abs(self.saved_seconds))
            yield (
                f"  {self.settled_calls} settled calls {verb} about {about} against the first "
                "alternative"
            )

    def __str__(self) -> str:
        return "\n".join(self.lines())


@dataclass(frozen=True, slots=True)
class Report:
    """Every selector of a process, or of a store."""

    selectors: tuple[SelectorReport, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same content in dicts, lists, strings and numbers, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(line for selector in self.selectors for line in selector.lines())


def report_from_dict(content: Any) -> Report:
    """The report that `to_dict` was made from, also after a way through JSON; InvalidArgument for
    anything else."""
    try:
        return Report(tuple(_selector(selector) for selector in content["selectors"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"this is not the content of a report: {type(error).__name__}: {error}"
        ) from error


def _selector(content: dict[str, Any]) -> SelectorReport:
    problems = tuple(_problem(problem) for problem in content["problems"])
    return SelectorReport(**{**content, "problems": problems})


def _problem(content: dict[str, Any]) -> ProblemReport:
    alternatives = tuple(_alternative(alternative) for alternative in content["alternatives"])
    history = tuple(_reopening(reopening) for reopening in content.get("history", ()))
    return ProblemReport(**{**content, "alternatives": alternatives, "history": history})


def _reopening(content: dict[str, Any]) -> EarlierRace:
    populations = content.get("populations")
    return EarlierRace(
        **{**content, "populations": None if populations is None else tuple(populations)}
    )


def _alternative(content: dict[str, Any]) -> AlternativeReport:
    if content["status"] not in get_args(Status):
        raise ValueError(f"no alternative has the status {content['status']!r}")
    children = tuple((selector, problem) for selector, problem in content.get("children", ()))
    return AlternativeReport(**{**content, "children": children})
