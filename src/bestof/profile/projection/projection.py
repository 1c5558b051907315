"""Projects a profile: replays every problem alone, and computes how fast the step could be.

Each problem runs hot and cold: as it was logged, as oneDNN would choose, by each other
implementation, and by bestof's kernels. A ceiling sums the best times over the calls of a step.
Divided by the observed time, it gives the efficiency. This is a range, because in a program caches
are neither always hot nor always cold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TypeAlias

import torch

from bestof.errors import ProfileError
from bestof.profile.log import read_lines
from bestof.profile.peak import Peak
from bestof.profile.projection.alternatives import Alternative, alternatives_of
from bestof.profile.projection.aten_call import AtenCall, Part, parts_of
from bestof.profile.projection.enabled_convolution import (
    EnabledConvolution,
    convolutions_of,
    without_convolutions,
)
from bestof.profile.projection.measured import Kept, Measured
from bestof.profile.projection.problem import Problem
from bestof.profile.span import Span
from bestof.profile.steady import Steady
from bestof.profile.stopwatch import Disturbance, Times, Watch, times_of
from bestof.profile.verbose.line import Line
from bestof.progress import Progress

# The share of a problem's time for the replay of the logged call. The other ways share the rest.
_SAME = 0.25
# The most seconds for a problem. More gain nothing.
_MOST = 2.0
# The least seconds of one measurement. Two calls are always made.
_LEAST = 0.004
# A ceiling counts only if it is this much below the observed time, so that noise gives no advice.
_WORTH = 0.95

_Replayed: TypeAlias = Line | AtenCall | EnabledConvolution


# `enable` replaces whole convolutions, so at this ceiling they take the place of their lines.
ENABLED = "with `enable`"

# The ceilings, from the logged call to all that was tried. oneDNN's choice includes layouts that
# PyTorch does not use. `enable` cannot reach these.
CEILINGS: Mapping[str, tuple[str, ...]] = {
    "as logged, alone": ("same",),
    "oneDNN's choice": ("same", "onednn"),
    ENABLED: ("same", "bestof"),
    "best of all": ("same", "onednn", "implementation", "bestof"),
}


@dataclass(frozen=True, slots=True)
class Projection:
    """The replayed problems of a step. `wall` is the time of the step.

    `problems` are those of lines and of operations without a line. `convolutions` are the replayed
    operations that `enable` replaces as a whole. `outside` has the observed seconds of each problem
    outside of these, by its key.
    """

    wall: float
    problems: tuple[Problem, ...]
    disturbance: Disturbance
    threads: int
    convolutions: tuple[Problem, ...] = ()
    outside: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The observed time of all lines."""
        return sum(one.seconds for one in self.problems)

    @property
    def coverage(self) -> float:
        """The share of the step's wall time that was replayed."""
        return self.replayed() / self.wall if self.wall > 0 else 0.0

    def parts(self, ceiling: str | None) -> Iterator[tuple[Problem, float]]:
        """Yield what counts at a ceiling, each with the seconds that it took in the step."""
        whole = ceiling == ENABLED and bool(self.convolutions)
        for one in self.problems:
            if one.measured:
                yield one, self.outside.get(one.key, 0.0) if whole else one.seconds
        if whole:
            for one in self.convolutions:
                yield one, one.seconds

    def replayed(self, ceiling: str | None = None) -> float:
        """Return the observed time of what was replayed."""
        return sum(seconds for _, seconds in self.parts(ceiling))

    def share(self, ceiling: str) -> float:
        """Return the share of the step's wall time that was replayed for a ceiling."""
        return self.replayed(ceiling) / self.wall if self.wall > 0 else 0.0

    def projected(self, ceiling: str, cold: bool) -> float:
        """Return the seconds of what was replayed at a ceiling.

        No problem counts as slower than it was observed.
        """
        return self._sum(ceiling, lambda one: _seconds(one.ceiling(CEILINGS[ceiling], cold), cold))

    def expected(self, ceiling: str) -> float:
        """Return the seconds of the step at a ceiling, with each problem as cold as it was."""
        parts = self._sum(ceiling, lambda one: one.expected(CEILINGS[ceiling]))
        return self.wall - self.replayed(ceiling) + parts

    def _sum(self, ceiling: str, best: Callable[[Problem], float | None]) -> float:
        total = 0.0
        for one, seconds in self.parts(ceiling):
            alone = best(one)
            if alone is None or not one.seconds:
                total += seconds
            else:
                total += min(seconds, one.calls * alone * seconds / one.seconds)
        return total

    def roofline(self) -> float | None:
        """Return the seconds of the replayed lines by the peaks, or None without peaks."""
        known = [one for one in self.problems if one.measured]
        if any(one.roofline is None for one in known):
            return None
        return sum(min(one.seconds, one.calls * (one.roofline or 0.0)) for one in known)

    def advice(self) -> list[tuple[Problem, Measured, float]]:
        """Return advice: the problem, the faster way, and the seconds of a step that it saves.

        The largest saving comes first. The greater of the hot and the cold time is used, so that
        savings do not depend on caches. Whole convolutions tell what bestof's kernels save, because
        their times include conversions of the layout.
        """
        found = []
        for one in (*self.problems, *self.convolutions):
            lines = bool(self.convolutions) and one in self.problems
            ways = [way for way in one.measured if way.kind != "bestof" or not lines]
            best = min(ways, key=_slower, default=None)
            if best is not None and best.kind != "same":
                saved = one.seconds - one.calls * _slower(best)
                if one.calls * _slower(best) < _WORTH * one.seconds:
                    found.append((one, best, saved))
        return sorted(found, key=lambda one: -one[2])


def _seconds(one: Measured | None, cold: bool) -> float | None:
    return None if one is None else one.seconds(cold)


def _slower(one: Measured) -> float:
    return max(one.hot, one.seconds(cold=True))


def problems_of(steady: Steady, threads: int, peak: Peak | None) -> list[tuple[Problem, Line]]:
    """Return the distinct problems of a step, the longest first, with one line of each."""
    groups: dict[tuple[str, ...], list[tuple[Span, Line]]] = {}
    for span in steady.spans:
        if span.kind == "line":
            for line in read_lines([span.text]).lines:
                # The span has sizes that MKL does not print.
                sized = replace(line, problem=span.problem)
                groups.setdefault(sized.key, []).append((span, sized))
    result = []
    for key, members in groups.items():
        span, line = members[0]
        problem = Problem(
            key="|".join((*key, span.implementation, f"threads={threads}")),
            primitive=span.name,
            direction=span.direction,
            implementation=span.implementation,
            problem=span.problem,
            calls=len(members),
            seconds=sum(one.self_seconds for one, _ in members),
            modules=tuple(dict.fromkeys(one.module for one, _ in members if one.module)),
            roofline=None if peak is None else peak.least(span),
        )
        result.append((problem, line))
    return sorted(result, key=lambda one: -one[0].seconds)


def operations_of_step(
    steady: Steady, threads: int, peak: Peak | None
) -> list[tuple[Problem, AtenCall | None]]:
    """Return the distinct operations of a step that have no line, the longest first.

    Their roofline is the time to read or write each argument once, or that of their operations.
    """
    groups: dict[str, list[Part]] = {}
    for part in parts_of(steady.spans):
        key = part.span.text if part.call is not None else f"{part.span.name}|{part.reason}"
        groups.setdefault(key, []).append(part)
    result = []
    for key, parts in groups.items():
        span, call = parts[0].span, parts[0].call
        problem = Problem(
            key=f"{key}|threads={threads}",
            primitive=span.name,
            direction=span.direction,
            implementation="PyTorch",
            problem=span.problem,
            calls=len(parts),
            seconds=sum(one.seconds for one in parts),
            modules=tuple(dict.fromkeys(one.span.module for one in parts if one.span.module)),
            roofline=None if peak is None or call is None else call.least(peak),
            reason=parts[0].reason,
        )
        result.append((problem, call))
    return sorted(result, key=lambda one: -one[0].seconds)


def convolutions_of_step(steady: Steady, threads: int) -> list[tuple[Problem, EnabledConvolution]]:
    """Return the distinct convolutions of a step with all that runs inside of them."""
    groups: dict[str, list[Sequence[Span]]] = {}
    for spans in convolutions_of(steady.spans):
        groups.setdefault(spans[0].text, []).append(spans)
    result = []
    for text, members in groups.items():
        call = AtenCall.read(text)
        if call is None:
            continue
        span = members[0][0]
        problem = Problem(
            key=f"{text}|convolution|threads={threads}",
            primitive=span.name,
            direction=span.direction,
            implementation="PyTorch",
            problem=span.problem,
            calls=len(members),
            seconds=sum(one.self_seconds for spans in members for one in spans),
            modules=tuple(dict.fromkeys(one[0].module for one in members if one[0].module)),
        )
        result.append((problem, EnabledConvolution(call)))
    return result


def project(
    steady: Steady,
    threads: int,
    peak: Peak | None,
    seconds: float,
    kept: Kept,
    tell: Progress = lambda _text, _step, _steps: None,
) -> Projection:
    """Replay the problems of a step with its number of threads, for about `seconds` in all.

    If time runs out, the remaining problems are not replayed, and counted as such. A later run with
    the same `kept` continues. `tell` is called with the next problem, the number of finished
    ones, and the number of all.
    """
    found: list[tuple[Problem, _Replayed | None]] = [
        *problems_of(steady, threads, peak),
        *operations_of_step(steady, threads, peak),
        *convolutions_of_step(steady, threads),
    ]
    whole = {one.key for one, call in found if isinstance(call, EnabledConvolution)}
    # Whole convolutions come last. They have at least half of the time, if there are any.
    found.sort(key=lambda one: (one[0].key in whole, -one[0].seconds))
    ends, watch, calls = perf_counter() + seconds, Watch(), 0
    lines_end = ends - seconds / 2 if whole else ends
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    done = []
    try:
        for number, (problem, line) in enumerate(found):
            tell(f"{problem.primitive} {problem.problem}", number, len(found))
            if line is None:
                done.append(problem)
                continue
            last = problem.key in whole
            left = (ends if last else lines_end) - perf_counter()
            # The longest problems come first. Each gets its share of the remaining time.
            after = [one for one, _ in found[number:] if (one.key in whole) == last]
            rest = sum(one.seconds for one in after) or 1.0
            if problem.key not in kept.known:
                if left <= 0:
                    done.append(_with(problem, (), "no time was left; continue with --resume FILE"))
                    continue
                share = left * max(problem.seconds / rest, 1.0 / len(after))
                try:
                    kept.add(problem.key, list(_measure(line, min(share, left, _MOST))))
                except ProfileError as error:
                    done.append(_with(problem, (), str(error)))
                    continue
            measured = kept.known[problem.key]
            calls += len(measured)
            done.append(_with(problem, tuple(measured), ""))
    finally:
        torch.set_num_threads(before)
    tell("", len(found), len(found))
    convolutions = tuple(one for one in done if one.key in whole and one.measured)
    problems = tuple(one for one in done if one.key not in whole)
    outside = _outside(steady, threads, convolutions)
    return Projection(steady.wall, problems, watch.read(calls), threads, convolutions, outside)


def _outside(steady: Steady, threads: int, convolutions: Sequence[Problem]) -> Mapping[str, float]:
    """Return the observed seconds of each problem outside of these convolutions, by its key."""
    rest = without_convolutions(steady, {one.key.rsplit("|", 2)[0] for one in convolutions})
    found = [*problems_of(rest, threads, None), *operations_of_step(rest, threads, None)]
    return {one.key: one.seconds for one, _ in found}


def _with(problem: Problem, measured: tuple[Measured, ...], reason: str) -> Problem:
    return replace(problem, measured=measured, reason=reason)


def _measure(line: _Replayed, seconds: float) -> Iterator[Measured]:
    """Time each way to compute a line.

    A way that fails is left out, unless it is the logged call.
    """
    if isinstance(line, EnabledConvolution):
        yield from line.measure(seconds)
        return
    if isinstance(line, AtenCall):
        times = times_of(line.bind, max(line.bytes, 1), max(seconds * _SAME, _LEAST))
        yield Measured("same", "PyTorch's operation", times.hot, times.cold)
        return
    names: set[str] = set()
    others = seconds * (1 - _SAME)
    for place, one in enumerate(alternatives_of(line)):
        # The number of further ways is unknown, so each takes an eighth of the remaining time.
        share = seconds * _SAME if place == 0 else others / 8
        others -= 0.0 if place == 0 else share
        try:
            if one.name not in names:
                names.add(one.name)
                times = _times(one, max(share, _LEAST))
                yield Measured(one.kind, one.name, times.hot, times.cold)
        finally:
            one.free()


def _times(one: Alternative, seconds: float) -> Times:
    return times_of(one.bind, one.bytes, seconds)
