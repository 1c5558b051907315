"""Sums a steady step by fields of its spans: module, operation, primitive, direction, and
others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bestof.errors import InvalidArgument
from bestof.profile.peak import Peak
from bestof.profile.span import Span
from bestof.profile.steady import Steady


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a breakdown. `share` is its part of the wall time of a step.

    `rate` is in FLOP/s and `bandwidth` in bytes/s, over the time of the spans whose work is known.
    They are None if no work is known. `roofline` is the least time that the peaks of the machine
    allow for this work, divided by the time that it took.
    """

    keys: tuple[str, ...]
    calls: int
    seconds: float
    share: float
    flops: int
    bytes: int
    rate: float | None
    bandwidth: float | None
    roofline: float | None


# The fields of a breakdown, and how to read them from a span.
FIELDS: dict[str, Callable[[Span], str]] = {
    "phase": lambda span: span.phase,
    "module": lambda span: span.module or (f"({span.module_class})" if span.module_class else ""),
    "class": lambda span: span.module_class,
    "operation": lambda span: span.operation,
    "primitive": lambda span: span.name,
    "source": lambda span: span.source,
    "direction": lambda span: span.direction,
    "dtype": lambda span: span.dtype,
    "layout": lambda span: span.layout,
    "implementation": lambda span: span.implementation,
    "problem": lambda span: f"{span.name} {span.problem}",
}


def breakdown(steady: Steady, by: Sequence[str], peak: Peak | None = None) -> list[Row]:
    """Return the rows, the slowest first. Raises InvalidArgument for an unknown field."""
    for name in by:
        if name not in FIELDS:
            raise InvalidArgument(
                f"there is no breakdown by {name!r}; take some of {', '.join(FIELDS)}"
            )
    groups: dict[tuple[str, ...], list[Span]] = {}
    for span in steady.all_spans:
        groups.setdefault(tuple(FIELDS[name](span) for name in by), []).append(span)
    rows = [_row(keys, spans, steady.wall, peak) for keys, spans in groups.items()]
    return sorted(rows, key=lambda row: -row.seconds)


def _row(keys: tuple[str, ...], spans: Sequence[Span], wall: float, peak: Peak | None) -> Row:
    seconds = sum(span.self_seconds for span in spans)
    known = [span for span in spans if span.flops or span.bytes]
    work = sum(span.flops for span in known)
    moved = sum(span.bytes for span in known)
    measured = sum(span.self_seconds for span in known)
    least = None if peak is None else sum(peak.least(span) for span in known)
    return Row(
        keys=keys,
        # If its lines explain all of its time, an operation does not count as a call.
        calls=sum(1 for span in spans if span.kind == "line")
        or sum(1 for span in spans if span.self_seconds > 0),
        seconds=seconds,
        share=seconds / wall if wall > 0 else 0.0,
        flops=work,
        bytes=moved,
        rate=work / measured if work and measured > 0 else None,
        bandwidth=moved / measured if moved and measured > 0 else None,
        roofline=None if least is None or not known or measured <= 0 else least / measured,
    )
