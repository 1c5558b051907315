"""Hold reports about selectors, as plain values.

Tables and pictures are made from these values, and compute nothing themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from bestof.errors import InvalidArgument
from bestof.escaped import escaped
from bestof.html_table import html_table
from bestof.selection.duration import duration
from bestof.selection.state.earlier_race import EarlierRace

_NEAR = 0.1  # of the time: a smaller gain may be a tie

Status = Literal[
    "chosen", "measured", "pruned", "disqualified", "left out", "not applicable", "not tried"
]


class Met(NamedTuple):
    """How often a program met a problem, and where.

    `calls` counts those that native code answered too. `places` are names of what called, such as
    the modules of a model. `refused` calls were left to the first alternative by another one, which
    does not compute operands like theirs.
    """

    calls: int
    places: tuple[str, ...] = ()
    refused: int = 0


@dataclass(frozen=True, slots=True)
class AlternativeReport:
    """One alternative on one problem.

    `seconds` is what a choice goes by: the median of the trials, without a slow first one, plus
    `surcharge`, what a call costs beyond a trial if this alternative has won. `spread` is half the
    distance between the quartiles, in seconds. `speedup` is the time of the first alternative
    divided by this one. Each is None if it is unknown. `reason` says why the alternative was
    disqualified or left out. `children` are pairs (selector, problem): the choices met inside it.

    The status "pruned" means that the alternative left the search before the chosen one had all its
    trials; "left out", that it could run and was not worth a trial; "not applicable", that it
    cannot compute the problem.
    """

    name: str
    status: Status
    seconds: float | None = None
    spread: float | None = None
    trials: int = 0
    speedup: float | None = None
    reason: str | None = None
    children: tuple[tuple[str, str], ...] = ()
    surcharge: float = 0.0

    def line(self, width: int) -> str:
        """Return one line of text. The name is padded to `width`; a star marks the chosen one."""
        mark = "*" if self.status == "chosen" else " "
        reason = f": {self.reason}" if self.reason else ""
        if self.seconds is None:
            return f"{mark} {self.name:<{width}}  {self.status}{reason}"
        speedup = "" if self.speedup is None else f"  {self.speedup:.2f}x"
        counted = _counted(self.trials, "trial")
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
    forced: by BESTOF_FORCE, or by a policy that fixes it.
    window: the best so far, or the first, when a window of steps ended.
    pinned: by a pin in the store.
    locked: by the lock of the process.
    not in the lock: the process has a lock, and the problem is not recorded in it.

    `history` holds the earlier races of this process. Each was reopened because the winner had
    become slower or faster. `noisy` says that another alternative may be faster, as far as the
    samples tell; the next run then verifies the decision early. `why` says why there is no
    decision, if waiting alone will not bring one. `settled_calls` counts the calls that the
    decision has answered, and `places` names what called; 0 and empty if they are unknown. Of these
    calls, the chosen alternative left `refused_calls` to the first one because of their operands.
    `earlier_calls` counts those that earlier decisions have answered, and `earlier_saved` is what
    these calls saved, in seconds. In a report of several processes it also holds what the calls of
    the others saved more than `alternatives` tell. `trials` is the number of timed calls of this
    process before the decision.
    """

    problem: str
    decision: str | None
    source: str | None
    alternatives: tuple[AlternativeReport, ...]
    history: tuple[EarlierRace, ...] = ()
    noisy: bool = False
    why: str | None = None
    settled_calls: int = 0
    places: tuple[str, ...] = ()
    refused_calls: int = 0
    earlier_calls: int = 0
    earlier_saved: float = 0.0
    trials: int = 0

    @property
    def first(self) -> AlternativeReport | None:
        """The first alternative that the search could try, by which gains are counted."""
        never = ("not applicable", "left out")
        return next((one for one in self.alternatives if one.status not in never), None)

    @property
    def before(self) -> float | None:
        """Seconds of a call by `first`; None if it was not measured."""
        return None if self.first is None else self.first.seconds

    @property
    def chosen(self) -> AlternativeReport | None:
        """The row of the decision; None if there is none."""
        return next((one for one in self.alternatives if one.name == self.decision), None)

    @property
    def gain(self) -> float:
        """Seconds that the decision saves in one call; 0 if a time is unknown."""
        after = None if self.chosen is None else self.chosen.seconds
        return 0.0 if self.before is None or after is None else self.before - after

    @property
    def saved(self) -> float:
        """Seconds that its decisions saved in their calls; refused ones save nothing."""
        return (self.settled_calls - self.refused_calls) * self.gain + self.earlier_saved

    @property
    def refusals(self) -> str | None:
        """How many calls the chosen alternative refused; None if it refused none."""
        if not self.refused_calls:
            return None
        return (
            f"{self.decision} refused {self.refused_calls:,} of {self.settled_calls:,} calls "
            f"because of their operands; {self.alternatives[0].name} answered them"
        )

    @property
    def remark(self) -> str | None:
        """Why an alternative was chosen although another one is faster; None if none is."""
        chosen = self.chosen
        if chosen is None or chosen.seconds is None:
            return None
        fit = ("measured", "pruned")
        timed = [one for one in self.alternatives if one.status in fit and one.seconds is not None]
        rival = min(timed, key=lambda one: one.seconds or 0.0, default=chosen)
        if rival.seconds is None or rival.seconds >= chosen.seconds:
            return None
        faster = f"{rival.name} is {1.0 - rival.seconds / chosen.seconds:.0%} faster"
        if self.source in ("forced", "pinned"):
            return f"by order, although {faster}"
        if rival.trials < chosen.trials:
            tried = "its only trial" if rival.trials == 1 else f"its {rival.trials} trials"
            return f"{faster} by {tried}, but lost to alternatives that ran beside it then"
        if rival.seconds > (1.0 - _NEAR) * chosen.seconds:
            return f"{faster}, a near-tie: the one listed first wins"
        return f"{faster} by the median, but not trial by trial: times vary"

    @property
    def settled(self) -> bool:
        """Whether there is a decision."""
        return self.decision is not None

    def lines(self) -> Iterator[str]:
        """Yield lines of text: the decision, then one line for each alternative."""
        if self.settled:
            noisy = ", noisy" if self.noisy else ""
            yield f"{self.problem}: {self.decision} ({self.source}{noisy})"
            if self.remark is not None:
                yield f"  {self.remark}"
            if self.refusals is not None:
                yield f"  {self.refusals}"
        else:
            yield f"{self.problem}: unsettled{f', {self.why}' if self.why else ''}"
        if self.places:
            yield f"  met in {', '.join(self.places)}"
        width = max(len(alternative.name) for alternative in self.alternatives)
        for alternative in self.alternatives:
            yield "  " + alternative.line(width)
        for reopening in self.history:
            yield f"  earlier {reopening}"

    def __str__(self) -> str:
        return "\n".join(map(escaped, self.lines()))

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        title, *_ = self.lines()
        rows = [
            (
                one.name,
                duration(one.seconds),
                str(one.trials or ""),
                "" if one.speedup is None else f"{one.speedup:.2f}x",
                f"{one.status}: {one.reason}" if one.reason else one.status,
            )
            for one in self.alternatives
        ]
        strong = [p for p, one in enumerate(self.alternatives) if one.name == self.decision]
        headings = ("alternative", "time", "trials", "speed-up", "status")
        notes = [] if self.remark is None else [self.remark]
        return html_table(title, headings, rows, strong=strong, notes=notes)


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
        for line in self._totals():
            yield "  " + line

    def _totals(self) -> Iterator[str]:
        """Yield the cost of the search, and what it has saved."""
        if self.trials:
            took, lost = duration(self.trial_seconds), duration(self.loss_seconds)
            yield f"{_counted(self.trials, 'trial')} took {took}, of which {lost} were lost"
        if self.saved_seconds:
            verb = "saved" if self.saved_seconds > 0 else "cost"
            about, calls = duration(abs(self.saved_seconds)), self.settled_calls
            counted = _counted(calls, "settled call")
            yield f"{counted} {verb} about {about} against the first alternative"

    def _repr_html_(self) -> str:
        """Return a table for notebooks: a row for each problem."""
        rows = []
        for one in self.problems:
            after = None if one.chosen is None else one.chosen.seconds
            why = one.why or one.remark or ("noisy" if one.noisy else "")
            chosen = one.decision or "unsettled"
            rows.append((one.problem, chosen, duration(one.before), duration(after), why))
        headings = ("problem", "chosen", "before", "after", "")
        return html_table(self.selector, headings, rows, notes=self._totals())

    def __str__(self) -> str:
        return "\n".join(map(escaped, self.lines()))


@dataclass(frozen=True, slots=True)
class Run:
    """The program that a report is about.

    `seconds` is how long it ran, `began` when, in seconds since the epoch. `host` is the processor,
    `versions` are texts such as "torch 2.13.0". `course` tells how far the search was, in order of
    time. `window` tells in words of the steps in which it searched; None if it searched in all.
    """

    program: str
    seconds: float
    began: float
    host: str
    versions: tuple[str, ...] = ()
    course: tuple[Moment, ...] = ()
    window: str | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """How far the search was `at` seconds after the run began: so many trials, which had taken so
    many seconds, and so many problems with a decision."""

    at: float
    trials: int
    trial_seconds: float
    decisions: int


@dataclass(frozen=True, slots=True)
class Report:
    """Every selector of a process, or of a store. `run` is None if it is not about one program."""

    selectors: tuple[SelectorReport, ...]
    run: Run | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the same content as dicts, tuples, strings and numbers, ready for JSON.

        `dataclasses.asdict` took six times as long, because it copies every number.
        """
        selectors = tuple(_dict(one) for one in self.selectors)
        run = {} if self.run is None else {"run": _dict(self.run)}
        return {"selectors": selectors, **run}

    def __str__(self) -> str:
        return "\n".join(map(str, self.selectors))


_Value = TypeVar(
    "_Value", AlternativeReport, ProblemReport, SelectorReport, EarlierRace, Run, Moment
)
_TYPES: dict[str, type] = {"str": str, "bool": bool}
_LARGEST = 1e18  # of seconds and counts


def _dict(value: Any) -> Any:
    """Return a dataclass, and those in its tuples, as dicts."""
    names = getattr(value, "__slots__", None)
    if names is None:
        return tuple(map(_dict, value)) if type(value) is tuple and value else value
    return {name: _dict(getattr(value, name)) for name in names}


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def report_from_dict(content: Any) -> Report:
    """Return the report that `to_dict` was made from, also after a round trip through JSON.

    Raises InvalidArgument if `content` is not such a dict.
    """
    try:
        run = content.get("run")
        return Report(
            tuple(_selector(selector) for selector in content["selectors"]),
            None if run is None else _run(run),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"this is not the content of a report: {type(error).__name__}: {error}"
        ) from error


def _run(content: dict[str, Any]) -> Run:
    course = tuple(_checked(Moment(**moment)) for moment in content.get("course", ()))
    versions = _texts("versions", content.get("versions", ()))
    return _checked(Run(**{**content, "course": course, "versions": versions}))


def _texts(name: str, content: Any) -> tuple[str, ...]:
    if not all(isinstance(one, str) for one in content):
        raise TypeError(f"{name}: expected texts")
    return tuple(content)


def _selector(content: dict[str, Any]) -> SelectorReport:
    problems = tuple(_problem(problem) for problem in content["problems"])
    return _checked(SelectorReport(**{**content, "problems": problems}))


def _problem(content: dict[str, Any]) -> ProblemReport:
    alternatives = tuple(_alternative(alternative) for alternative in content["alternatives"])
    if not alternatives:
        raise ValueError("a problem has at least one alternative")
    history = tuple(_reopening(reopening) for reopening in content.get("history", ()))
    places = _texts("places", content.get("places", ()))
    parts = {"alternatives": alternatives, "history": history, "places": places}
    return _checked(ProblemReport(**{**content, **parts}))


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
