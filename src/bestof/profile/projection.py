"""Projects a profile: replays every problem alone, and computes how fast the step could be.

Each problem runs hot and cold: as it was logged, as oneDNN would choose, by each other
implementation, and by bestof's kernels. A ceiling sums the best times over the calls of a step.
Divided by the observed time, it gives the efficiency. This is a range, because in a program caches
are neither always hot nor always cold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import torch

from bestof.errors import ProfileError
from bestof.profile.alternatives import Alternative, alternatives_of
from bestof.profile.aten_call import AtenCall, Part, parts_of
from bestof.profile.line import Line
from bestof.profile.log import read_lines
from bestof.profile.measured import Kept, Measured
from bestof.profile.peak import Peak
from bestof.profile.span import Span
from bestof.profile.steady import Steady
from bestof.profile.stopwatch import Disturbance, Times, Watch, times_of

# The share of a problem's time for the replay of the logged call. The other ways share the rest.
_SAME = 0.25
# The most seconds for a problem. More gain nothing.
_MOST = 2.0
# The least seconds of one measurement. Two calls are always made.
_LEAST = 0.004
# A ceiling counts only if it is this much below the observed time, so that noise gives no advice.
_WORTH = 0.95


@dataclass(frozen=True, slots=True)
class Problem:
    """One distinct problem of a step: `calls` of them took `seconds` in all, in `modules`.

    `reason` says why it was not replayed. `roofline` is the least seconds of a call by the peaks,
    or None without peaks.
    """

    key: str
    primitive: str
    direction: str
    implementation: str
    problem: str
    calls: int
    seconds: float
    modules: tuple[str, ...]
    measured: tuple[Measured, ...] = ()
    roofline: float | None = None
    reason: str = ""

    def ceiling(self, kinds: Sequence[str], cold: bool) -> Measured | None:
        """Return the fastest way of the given kinds."""
        own = [one for one in self.measured if one.kind in kinds]
        return min(own, key=lambda one: one.seconds(cold), default=None)

    @property
    def coldness(self) -> float:
        """The place of the observed calls between hot (0) and cold (1) runs of the logged call.

        It is 1 if these runs differ by nothing, or if the logged call was not replayed.
        """
        same = self.ceiling(("same",), cold=True)
        if same is None or same.seconds(cold=True) <= same.hot:
            return 1.0
        place = (self.seconds / self.calls - same.hot) / (same.seconds(cold=True) - same.hot)
        return min(1.0, max(0.0, place))

    def expected(self, kinds: Sequence[str]) -> float | None:
        """Return the seconds of the fastest way, as cold as the observed calls were."""
        own = [one.between(self.coldness) for one in self.measured if one.kind in kinds]
        return min(own, default=None)

    @property
    def same_implementation(self) -> bool:
        """Whether the replay of the logged call ran the same implementation as the line."""
        own = self.ceiling(("same",), cold=False)
        return own is not None and self.implementation.split(":", 1)[-1] in own.name


# The ceilings, from the logged call to all that was tried. oneDNN's choice includes layouts that
# PyTorch does not use. `enable` cannot reach these, so its ceiling has bestof's kernels only.
CEILINGS: Mapping[str, tuple[str, ...]] = {
    "as logged, alone": ("same",),
    "oneDNN's choice": ("same", "onednn"),
    "with `enable`": ("same", "bestof"),
    "best of all": ("same", "onednn", "implementation", "bestof"),
}


@dataclass(frozen=True, slots=True)
class Projection:
    """The replayed problems of a step. `wall` is the time of the step, `seconds` that of its
    lines."""

    wall: float
    problems: tuple[Problem, ...]
    disturbance: Disturbance
    threads: int

    @property
    def seconds(self) -> float:
        """The observed time of all lines."""
        return sum(one.seconds for one in self.problems)

    @property
    def replayed(self) -> float:
        """The observed time of the lines that were replayed."""
        return sum(one.seconds for one in self.problems if one.measured)

    @property
    def coverage(self) -> float:
        """The share of the step's wall time that was replayed."""
        return self.replayed / self.wall if self.wall > 0 else 0.0

    def projected(self, ceiling: str, cold: bool) -> float:
        """Return the seconds of the replayed lines at a ceiling.

        No problem counts as slower than it was observed.
        """
        total = 0.0
        for one in self.problems:
            best = one.ceiling(CEILINGS[ceiling], cold)
            if best is not None:
                total += min(one.seconds, one.calls * best.seconds(cold))
        return total

    def expected(self, ceiling: str) -> float:
        """Return the seconds of the step at a ceiling, with each problem as cold as it was."""
        total = self.wall - self.replayed
        for one in self.problems:
            best = one.expected(CEILINGS[ceiling])
            if best is not None:
                total += min(one.seconds, one.calls * best)
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
        savings do not depend on caches.
        """
        found = []
        for one in self.problems:
            best = min(one.measured, key=_slower, default=None)
            if best is not None and best.kind != "same":
                saved = one.seconds - one.calls * _slower(best)
                if one.calls * _slower(best) < _WORTH * one.seconds:
                    found.append((one, best, saved))
        return sorted(found, key=lambda one: -one[2])


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


def project(
    steady: Steady,
    threads: int,
    peak: Peak | None,
    seconds: float,
    kept: Kept,
    tell: Callable[[int, int, str], None] = lambda _done, _all, _what: None,
) -> Projection:
    """Replay the problems of a step with its number of threads, for about `seconds` in all.

    If time runs out, the remaining problems are not replayed, and counted as such. A later run with
    the same `kept` continues. `tell` is called with the number of finished problems, the number of
    all, and the next one.
    """
    found: list[tuple[Problem, Line | AtenCall | None]] = [
        *problems_of(steady, threads, peak),
        *operations_of_step(steady, threads, peak),
    ]
    found.sort(key=lambda one: -one[0].seconds)
    ends, watch, calls = perf_counter() + seconds, Watch(), 0
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    done = []
    try:
        for number, (problem, line) in enumerate(found):
            tell(number, len(found), f"{problem.primitive} {problem.problem}")
            if line is None:
                done.append(problem)
                continue
            left = ends - perf_counter()
            # The longest problems come first. Each gets its share of the remaining time.
            rest = sum(one.seconds for one, _ in found[number:]) or 1.0
            if problem.key not in kept.known:
                if left <= 0:
                    done.append(_with(problem, (), "no time was left; continue with --resume FILE"))
                    continue
                share = left * max(problem.seconds / rest, 1.0 / (len(found) - number))
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
    tell(len(found), len(found), "")
    return Projection(steady.wall, tuple(done), watch.read(calls), threads)


def _with(problem: Problem, measured: tuple[Measured, ...], reason: str) -> Problem:
    return replace(problem, measured=measured, reason=reason)


def _measure(line: Line | AtenCall, seconds: float) -> Iterator[Measured]:
    """Time each way to compute a line.

    A way that fails is left out, unless it is the logged call.
    """
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
