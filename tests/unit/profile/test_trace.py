"""A trace obeys Chrome's format, strictly read, and holds every span once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bestof.errors import ProfileError
from bestof.profile import Profile, Span, Step
from bestof.profile.mark import Mark
from bestof.profile.trace import trace_events, write_trace


def span(start: float, seconds: float, **fields) -> Span:
    given = {"kind": "operation", "source": "pytorch", "name": "aten::relu", "thread": 1}
    return Span(**{**given, "self_seconds": seconds, **fields, "start": start, "seconds": seconds})


PROFILE = Profile(
    title="fake",
    wall=1.0,
    thread=1,
    spans=(
        span(0.1, 0.4, phase="forward", module="layer1", module_class="Block"),
        span(0.2, 0.1, phase="forward", module="layer1.conv", module_class="Conv2d"),
        span(
            0.25,
            0.05,
            kind="line",
            source="onednn",
            name="convolution",
            flops=10**9,
            phase="forward",
        ),
        span(0.6, 0.2, phase="backward", module="layer1", module_class="Block"),
        span(0.9, 0.1, thread=2),
    ),
    steps=(Step(0.1, 0.9, 4),),
    marks=(Mark("decisions", "conv2d: winograd4", 0.3), Mark("trials", "winograd4", 0.2, 0.1)),
)


def read_strictly(path: Path) -> list[dict]:
    """Read a trace as the format is defined: known kinds, numbers where they must be, tracks that
    nest."""
    content = json.loads(path.read_bytes().decode("utf-8"))
    assert set(content) <= {"traceEvents", "displayTimeUnit", "otherData", "metadata"}
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in content["traceEvents"]:
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        assert type(event["name"]) is str
        assert event["name"]
        assert type(event["args"]) is dict
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            continue
        assert event["ph"] == "X"
        assert type(event["ts"]) in (int, float)
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        tracks.setdefault((event["pid"], event["tid"]), []).append(
            (event["ts"], event["ts"] + event["dur"])
        )
    for events in tracks.values():
        open_: list[float] = []
        for start, end in sorted(events, key=lambda one: (one[0], -one[1])):
            while open_ and open_[-1] <= start + 1e-3:
                open_.pop()
            assert not open_ or end <= open_[-1] + 1e-3, "spans of a track overlap without nesting"
            open_.append(end)
    return content["traceEvents"]


def test_the_trace_is_read_by_a_strict_reader(tmp_path: Path) -> None:
    write_trace(PROFILE, tmp_path / "trace.json")
    events = read_strictly(tmp_path / "trace.json")
    complete = [event for event in events if event["ph"] == "X"]
    names = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    by_track: dict[str, list[str]] = {}
    for event in complete:
        by_track.setdefault(names[event["tid"]], []).append(event["name"])
    assert by_track == {
        "steps": ["step 0"],
        "phases": ["forward", "backward"],
        "modules": ["Block layer1", "Conv2d layer1.conv", "Block layer1"],
        "thread 1": ["aten::relu"] * 3,
        "thread 2": ["aten::relu"],
        "oneDNN": ["convolution"],
        "trials": ["winograd4"],
        "decisions": ["conv2d: winograd4"],
    }


def test_a_span_tells_its_rate() -> None:
    (line,) = [one for one in trace_events(PROFILE) if one["name"] == "convolution"]
    assert line["args"]["gflops"] == pytest.approx(20.0)
    assert (line["ts"], line["dur"]) == (pytest.approx(0.25e6), pytest.approx(0.05e6))


def test_an_unwritable_place_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot write the trace"):
        write_trace(PROFILE, tmp_path / "missing" / "trace.json")
