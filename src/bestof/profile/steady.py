"""The steady step of a profile: the time of a step without disturbances.

Steps with the same calls in the same order are combined, with the least time of each position. The
sizes may differ in a few places, such as a loss over a varying number of boxes: of such a position
only the most usual size counts. If all steps differ, the step of median time is used. Without
steps, the whole profile is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import ne

from bestof.profile.profile import Profile
from bestof.profile.span import Span

# Two steps are the same if at most this share of their calls has other sizes.
_OTHER_SIZES = 0.02


@dataclass(frozen=True, slots=True)
class Steady:
    """The spans of one step. `aligned` of `steps` steps were the same.

    `coverage` is the share of the steps' wall time that spans on the main thread explain, with the
    work `between` operations, or None if the wall time is unknown. `wall` is scaled so that these
    spans have this share of it. `samples` is 0 if the batch is unknown.
    """

    spans: tuple[Span, ...]
    wall: float
    coverage: float | None
    steps: int
    aligned: int
    samples: int
    between: tuple[Span, ...] = ()

    @property
    def all_spans(self) -> tuple[Span, ...]:
        """The spans, and the work between them."""
        return self.spans + self.between


def steady_of(profile: Profile) -> Steady:
    if not profile.steps:
        return _whole(profile)
    by_step: list[list[Span]] = [[] for _ in profile.steps]
    for span in profile.spans:
        if span.step >= 0:
            by_step[span.step].append(span)
    # The first step makes what the others use: compiled kernels, memory, the optimizer's state.
    numbers = list(range(1 if len(by_step) > 1 else 0, len(by_step)))
    alike = _alike({number: by_step[number] for number in numbers})
    if len(alike) > 1:
        numbers = alike
        spans = [_least(own) for own in zip(*(by_step[number] for number in numbers), strict=True)]
    else:
        numbers = [sorted(numbers, key=lambda one: profile.steps[one].seconds)[len(numbers) // 2]]
        spans = by_step[numbers[0]]
    wall = sum(profile.steps[number].seconds for number in numbers)
    covered = sum(
        span.self_seconds
        for number in numbers
        for span in by_step[number]
        if span.thread == profile.thread
    )
    covered += sum(span.self_seconds for span in profile.between if span.step in numbers)
    between = _least_between(profile, numbers)
    coverage = min(1.0, covered / wall) if wall > 0 else None
    least = sum(span.self_seconds for span in spans if span.thread == profile.thread)
    least += sum(span.self_seconds for span in between)
    samples = profile.steps[numbers[0]].samples
    return Steady(
        spans=tuple(spans),
        wall=least / coverage if coverage else least,
        coverage=coverage,
        steps=len(profile.steps),
        aligned=len(numbers),
        samples=samples,
        between=between,
    )


def _alike(steps: Mapping[int, Sequence[Span]]) -> list[int]:
    """Return the numbers of the largest set of steps with the same calls."""
    calls = {number: tuple(span.call for span in own) for number, own in steps.items()}
    usual, _ = Counter(calls.values()).most_common(1)[0]
    keys = {
        number: [span.key for span in own]
        for number, own in steps.items()
        if calls[number] == usual
    }
    middle = [_most(column) for column in zip(*keys.values(), strict=True)]
    return [
        number
        for number, own in keys.items()
        if sum(map(ne, own, middle)) <= _OTHER_SIZES * len(middle)
    ]


def _most(keys: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return Counter(keys).most_common(1)[0][0]


def _least(spans: Sequence[Span]) -> Span:
    """Return the span of one position with the least times of all steps.

    Only steps with the most usual size of this position count.
    """
    usual = _most([span.key for span in spans])
    spans = [span for span in spans if span.key == usual]
    return replace(
        min(spans, key=lambda one: one.self_seconds), seconds=min(one.seconds for one in spans)
    )


def _least_between(profile: Profile, numbers: Sequence[int]) -> tuple[Span, ...]:
    """Return the least work between operations of all steps, for each phase and module."""
    found: dict[tuple[str, ...], dict[int, list[Span]]] = {}
    for span in profile.between:
        if span.step in numbers:
            found.setdefault(span.key, {}).setdefault(span.step, []).append(span)
    return tuple(
        replace(next(iter(steps.values()))[0], seconds=least, self_seconds=least)
        for steps in found.values()
        if len(steps) == len(numbers)
        for least in [min(sum(span.self_seconds for span in own) for own in steps.values())]
    )


def _whole(profile: Profile) -> Steady:
    covered = sum(one.self_seconds for one in profile.spans if one.thread == profile.thread)
    covered += sum(one.self_seconds for one in profile.between)
    return Steady(
        spans=profile.spans,
        wall=profile.wall or covered,
        coverage=min(1.0, covered / profile.wall) if profile.wall else None,
        steps=0,
        aligned=0,
        samples=0,
        between=profile.between,
    )
