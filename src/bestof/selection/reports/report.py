"""Hold reports about selectors, as plain values.

Tables and pictures are made from these values, and compute nothing themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, get_args

from bestof.errors import InvalidArgument
from bestof.selection.duration import duration
from bestof.selection.state.earlier_race import EarlierRace

Status = Literal["chosen", "measured", "pruned", "disqualified", "not applicable", "not tried"]


@dataclass(frozen=True, slots=True)
class AlternativeReport:
    """One alternative on one problem.

    `seconds` is the median. `spread` is half the distance between the quartiles, in seconds.
    `speedup` is the median of the first alternative divided by this one. Each is None if it is
    unknown. `reason` says why the alternative was disqualified. `children` are pairs (selector,
    problem): the choices met inside it.

    The status "pruned" means that the alternative left the search before the chosen one had all its
    trials.
    """

    name: str
    status: Status
    seconds: float | None = None
    spread: float | None = None
    trials: int = 0
    speedup: float | None = None
    reason: str | None = None
    children: tuple[tuple[str, str], ...] = ()

    def line(self, width: int) -> str:
        """Return one line of text. The name is padded to `width`; a star marks the chosen one."""
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
    """One problem, with its decision and its alternatives.

    `source` says where the decision comes from, and is None while the problem is unsettled:

    measured: by trials in this process.
    stored: by trials in earlier processes.
    only: no other alternative remained.
    forced: by BESTOF_FORCE, by a policy that fixes it, or by the end of a window of steps.
    pinned: by a pin in the store.

    `history` holds the earlier races of this process. Each was reopened because the winner had
    become slower or faster. `noisy` says that another alternative may be faster, as far as the
    samples tell; the next run then verifies the decision early. `why` says why there is no
    decision, if waiting alone will not bring one.
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
        """Yield lines of text: the decision, then one line for each alternative."""
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
    """One selector: its problems in the order in which they were met, and the cost of the search.

    `trials` counts timed calls, and `trial_seconds` is their time. `loss_seconds` is the part of it
    that calls of the chosen alternative would not have taken. `settled_calls` went straight to a
    winner. `saved_seconds` estimates what these saved: their number, times the difference of the
    medians of the first alternative and the winner. It is negative if an order chose a slower
    alternative.
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
        """Yield lines of text: every problem, then the cost of the search."""
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
        """Return the same content as dicts, tuples, strings and numbers, ready for JSON.

        `dataclasses.asdict` took six times as long, because it copies every number.
        """
        return {"selectors": tuple(_dict(one) for one in self.selectors)}

    def __str__(self) -> str:
        return "\n".join(line for selector in self.selectors for line in selector.lines())


_Value = TypeVar("_Value", AlternativeReport, ProblemReport, SelectorReport, EarlierRace)
_TYPES: dict[str, type] = {"str": str, "bool": bool}
_LARGEST = 1e18  # of seconds and counts


def _dict(value: Any) -> Any:
    """Return a dataclass, and those in its tuples, as dicts."""
    names = getattr(value, "__slots__", None)
    if names is None:
        return tuple(map(_dict, value)) if type(value) is tuple and value else value
    return {name: _dict(getattr(value, name)) for name in names}


def report_from_dict(content: Any) -> Report:
    """Return the report that `to_dict` was made from, also after a round trip through JSON.

    Raises InvalidArgument if `content` is not such a dict.
    """
    try:
        return Report(tuple(_selector(selector) for selector in content["selectors"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"this is not the content of a report: {type(error).__name__}: {error}"
        ) from error


def _selector(content: dict[str, Any]) -> SelectorReport:
    problems = tuple(_problem(problem) for problem in content["problems"])
    return _checked(SelectorReport(**{**content, "problems": problems}))


def _problem(content: dict[str, Any]) -> ProblemReport:
    alternatives = tuple(_alternative(alternative) for alternative in content["alternatives"])
    if not alternatives:
        raise ValueError("a problem has at least one alternative")
    history = tuple(_reopening(reopening) for reopening in content.get("history", ()))
    return _checked(ProblemReport(**{**content, "alternatives": alternatives, "history": history}))


def _reopening(content: dict[str, Any]) -> EarlierRace:
    populations = content.get("populations")
    if populations is not None:
        low, high = populations
        populations = _number("populations", low), _number("populations", high)
    return _checked(EarlierRace(**{**content, "populations": populations}))


def _alternative(content: dict[str, Any]) -> AlternativeReport:
    if content["status"] not in get_args(Status):
        raise ValueError(f"no alternative has the status {content['status']!r}")
    children = tuple((selector, problem) for selector, problem in content.get("children", ()))
    if not all(isinstance(one, str) for child in children for one in child):
        raise TypeError("children: expected pairs of texts")
    return _checked(AlternativeReport(**{**content, "children": children}))


def _checked(value: _Value) -> _Value:
    """Return a part of a report. Raises TypeError or ValueError for a field of another type."""
    for one in fields(value):
        found, kinds = getattr(value, one.name), str(one.type).split(" | ")
        if found is None and "None" in kinds:
            continue
        if kinds[0] in ("int", "float"):
            _number(one.name, found)
        elif kinds[0] in _TYPES and not isinstance(found, _TYPES[kinds[0]]):
            raise TypeError(f"{one.name}: expected {kinds[0]}; got {found!r:.60}")
    return value


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name}: expected a number; got {value!r:.60}")
    if not -_LARGEST < value < _LARGEST:  # false for NaN, too
        raise ValueError(f"{name}: expected a finite number; got one of another size")
    return value
