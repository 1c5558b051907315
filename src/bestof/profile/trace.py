"""Writes a profile as a trace in Chrome's format, for Perfetto and chrome://tracing.

Each thread of the program is a track of nested operations. Modules, phases, lines, and trials and
decisions of bestof have tracks of their own. Times are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bestof.errors import ProfileError
from bestof.profile.profile import Profile
from bestof.profile.span import Span
from bestof.whole_file import write_whole

_PROCESS = 1
# The tracks after the program's threads.
_TRACKS = {
    "steps": 1_000_001,
    "phases": 1_000_002,
    "modules": 1_000_003,
    "oneDNN": 1_000_004,
    "MKL": 1_000_005,
    "bestof": 1_000_006,
    "trials": 1_000_007,
    "decisions": 1_000_008,
    "drift": 1_000_009,
}
_SOURCES = {"onednn": "oneDNN", "mkl": "MKL", "bestof": "bestof"}

Event = dict[str, Any]


def trace_events(profile: Profile) -> list[Event]:
    """Return the events: a complete event (`X`) for each span, and the names of the tracks."""
    events = [*_names(profile)]
    for number, step in enumerate(profile.steps):
        events.append(
            _event("steps", f"step {number}", step.start, step.seconds, {"samples": step.samples})
        )
    for track, fields in (("phases", ("phase",)), ("modules", ("module_class", "module"))):
        events += _stretches(profile, track, fields)
    for span in profile.spans:
        own = _SOURCES.get(span.source) if span.kind == "line" else None
        place = span.thread if own is None else _TRACKS[own]
        events.append(_event(place, span.name, span.start, span.seconds, _arguments(span)))
    for mark in profile.marks:
        events.append(_event(mark.track, mark.name, mark.start, mark.seconds, {}))
    return events


def write_trace(profile: Profile, path: str | Path) -> None:
    """Write the trace as JSON. Raises ProfileError if the file cannot be written."""
    content = {"traceEvents": trace_events(profile), "displayTimeUnit": "ms"}
    try:
        write_whole(path, json.dumps(content))
    except OSError as error:
        raise ProfileError(
            f"cannot write the trace to {str(path)!r}: {error.strerror or error}"
        ) from error


def _names(profile: Profile) -> Iterator[Event]:
    yield _named("process_name", 0, profile.title)
    for thread in sorted({span.thread for span in profile.spans if span.kind == "operation"}):
        yield _named("thread_name", thread, f"thread {thread}")
    used = {mark.track for mark in profile.marks} | {"steps", "phases", "modules"}
    used |= {_SOURCES[span.source] for span in profile.spans if span.kind == "line"}
    for name in sorted(used, key=_TRACKS.__getitem__):
        yield _named("thread_name", _TRACKS[name], name)
        yield _named("thread_sort_index", _TRACKS[name], _TRACKS[name], "sort_index")


def _named(kind: str, thread: int, value: str | int, key: str = "name") -> Event:
    return {"ph": "M", "pid": _PROCESS, "tid": thread, "name": kind, "args": {key: value}}


def _event(
    track: str | int, name: str, start: float, seconds: float, arguments: dict[str, Any]
) -> Event:
    return {
        "ph": "X",
        "pid": _PROCESS,
        "tid": _TRACKS[track] if isinstance(track, str) else track,
        "name": name or "?",
        "ts": round(start * 1e6, 3),
        "dur": round(seconds * 1e6, 3),
        "args": arguments,
    }


def _stretches(profile: Profile, track: str, fields: Sequence[str]) -> Iterator[Event]:
    """Yield runs of spans of the main thread with the same fields, each as one event."""
    begun: tuple[float, tuple[str, ...]] | None = None
    end = 0.0
    for span in [*(one for one in profile.spans if one.thread == profile.thread), None]:
        key = None if span is None else tuple(getattr(span, name) for name in fields)
        if begun is not None and (key != begun[1] or span is None):
            # A run ends where the next one begins, because events of a track must not overlap.
            until = end if span is None else min(end, span.start)
            if any(begun[1]):
                name = " ".join(word for word in begun[1] if word)
                yield _event(track, name, begun[0], max(0.0, until - begun[0]), {})
            begun, end = None, 0.0
        if span is not None and key is not None:
            begun = (span.start, key) if begun is None else begun
            end = max(end, span.end)


def _arguments(span: Span) -> dict[str, Any]:
    """Return all that is known of a span, for Perfetto's details."""
    known = {
        "module": span.module,
        "operation": span.operation,
        "implementation": span.implementation,
        "direction": span.direction,
        "problem": span.problem,
        "dtype": span.dtype,
        "layout": span.layout,
        "self_us": round(span.self_seconds * 1e6, 3),
        "gflops": round(span.flops / span.seconds / 1e9, 3) if span.seconds > 0 else 0,
    }
    return {name: value for name, value in known.items() if value}
