"""A profile: all that was captured of a program, or read from a log, on one time line.

It is a value. `capture` and `read_log` make it, and files keep it. Breakdown, comparison, trace and
projection read it. Times are seconds since the start of the capture.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from bestof.errors import ProfileError
from bestof.escaped import escaped
from bestof.profile.mark import Mark
from bestof.profile.peak import Peak
from bestof.profile.span import Span
from bestof.whole_file import write_whole

_LARGEST = 1e25  # of FLOP/s, bytes and seconds
_FORMAT = "bestof profile 1"
_ANEW = "write one by bestof profile --keep FILE.json"

_SOURCES = ("onednn", "mkl", "bestof")  # of lines
_TRACKS = ("trials", "decisions", "drift")  # of marks

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of training, or one call of the model.

    `samples` is its batch, or 0 if unknown.
    """

    start: float
    end: float
    samples: int = 0

    @property
    def seconds(self) -> float:
        """Its wall time."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Profile:
    """All spans, steps and marks of a capture or a log.

    `wall` is the time of the capture. It is 0 for a log without timestamps, which has no coverage.
    `lines` counts the lines of oneDNN, MKL and bestof. `unattributed` counts those without an
    operation, and `unknown` those that could not be parsed, with `examples`. `host` describes
    processor, threads and versions. `between` are the times in which the main thread surely ran
    between operations. `marks` are what bestof's selectors did. `peak` holds the peaks
    of the machine, or None if they were not measured.
    """

    title: str
    wall: float
    spans: tuple[Span, ...]
    steps: tuple[Step, ...] = ()
    thread: int = 0
    lines: int = 0
    unattributed: int = 0
    unknown: int = 0
    examples: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    marks: tuple[Mark, ...] = ()
    host: Mapping[str, str] = field(default_factory=dict)
    peak: Peak | None = None
    between: tuple[Span, ...] = ()

    def save(self, path: str | Path) -> None:
        """Write it as JSON. Raises ProfileError if the file cannot be written."""
        content = {"format": _FORMAT, **asdict(self), "host": dict(self.host)}
        try:
            write_whole(path, json.dumps(content))
        except OSError as error:
            raise ProfileError(
                f"cannot write the profile to {str(path)!r}: {error.strerror or error}"
            ) from error


def load_profile(path: str | Path) -> Profile:
    """Read a profile that `save` wrote. Raises ProfileError for another file."""
    try:
        content = json.loads(Path(path).read_bytes().decode("utf-8"))
    except OSError as error:
        raise ProfileError(
            f"cannot read the profile {str(path)!r}: {error.strerror or error}; {_ANEW}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{str(path)!r} is not a profile: {error}; {_ANEW}") from error
    return _from_content(content, str(path))


def _from_content(content: Any, path: str) -> Profile:
    if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
        raise ProfileError(f"{path!r} is not a profile of this version; {_ANEW}")
    try:
        content["spans"] = tuple(_built(Span, one) for one in content["spans"])
        content["between"] = tuple(_built(Span, one) for one in content.get("between", ()))
        content["peak"] = None if content["peak"] is None else _built(Peak, content["peak"])
        content["marks"] = tuple(_built(Mark, one) for one in content["marks"])
        content["steps"] = tuple(_built(Step, one) for one in content["steps"])
        for name in ("examples", "refusals", "notes"):
            content[name] = tuple(map(escaped, _texts(name, content[name], list)))
        host = _texts("host", content["host"], dict)
        texts = map(escaped, _texts("host", list(host.values()), list))
        content["host"] = dict(zip(map(escaped, host), texts, strict=True))
        found = _built(Profile, content)
        _check(found)
        return found
    except KeyError as error:
        raise ProfileError(f"{path!r} is a damaged profile: {error} is missing; {_ANEW}") from error
    except (TypeError, ValueError) as error:
        raise ProfileError(f"{path!r} is a damaged profile: {error}; {_ANEW}") from error


def _check(found: Profile) -> None:
    """Raise ValueError for values that no capture makes, and on which readers rely."""
    steps = range(-1, len(found.steps))
    if any(one.step not in steps for one in (*found.spans, *found.between)):
        raise ValueError("step: expected one of the steps, or -1")
    for one in found.spans:
        if one.kind == "line" and one.source not in _SOURCES:
            raise ValueError(f"source: expected one of {', '.join(_SOURCES)}; got {one.source!r}")
    for mark in found.marks:
        if mark.track not in _TRACKS:
            raise ValueError(f"track: expected one of {', '.join(_TRACKS)}; got {mark.track!r}")
    if found.peak is not None and not min(found.peak.flops, found.peak.bandwidth) > 0:
        raise ValueError("peak: expected positive numbers")


def _built(kind: type[_Value], content: Mapping[str, Any]) -> _Value:
    """Return a dataclass from fields of JSON. Raises TypeError for a value of another type."""
    if not isinstance(content, Mapping):
        raise TypeError(f"{kind.__name__}: expected a dict; got {content!r:.60}")
    # Names are printed in tables, and a terminal obeys control characters.
    texts = {name: escaped(one) for name, one in content.items() if isinstance(one, str)}
    value = kind(**{**content, **texts})
    for name, types in _plain_fields(cast("Hashable", kind)):
        found = getattr(value, name)
        if not isinstance(found, types) or isinstance(found, bool):
            raise TypeError(f"{name}: expected {types[0].__name__}; got {found!r:.60}")
        if (
            isinstance(found, int | float) and not -_LARGEST < found < _LARGEST
        ):  # false for NaN, too
            raise ValueError(f"{name}: expected a finite number; got {found!r:.60}")
    return value


def _texts(name: str, content: Any, kind: type[list[Any] | dict[str, Any]]) -> Any:
    """Return a container of texts unchanged. Raises TypeError for anything else."""
    if not isinstance(content, kind) or not all(isinstance(one, str) for one in content):
        raise TypeError(f"{name}: expected a {kind.__name__} of texts; got {content!r:.60}")
    return content


@cache
def _plain_fields(kind: Any) -> list[tuple[str, tuple[type, ...]]]:
    """Return the fields of a dataclass that are texts or numbers, with their types."""
    types: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (float, int)}
    return [(one.name, types[one.type]) for one in fields(kind) if one.type in types]
