"""A profile: everything that was captured of a program, or read from a log, on one time line.

It is a value. `capture` and `read_log` make one, files keep one, and breakdown, comparison, trace
and projection read it. Times are seconds from the beginning of the capture.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bestof.errors import ProfileError
from bestof.profile.mark import Mark
from bestof.profile.peak import Peak
from bestof.profile.span import Span

_FORMAT = "bestof profile 1"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of training, or one call of the model; `samples` is its batch, 0 where it is
    unknown."""

    start: float
    end: float
    samples: int = 0

    @property
    def seconds(self) -> float:
        """Its wall time."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Profile:
    """`wall` is the time of the capture; 0 for a log without timestamps, whose coverage is unknown.

    `lines` counts the lines of oneDNN, MKL and bestof; `unattributed` those of them that no
    operation issued, and `unknown` those that could not be understood, with `examples`. `host`
    tells processor, threads and versions. `marks` are what bestof's selectors did. `peak` is what
    the machine reaches at most, None where it was not measured.
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

    def save(self, path: str | Path) -> None:
        """Write it as JSON; ProfileError where the file cannot be written."""
        content = {"format": _FORMAT, **asdict(self), "host": dict(self.host)}
        try:
            Path(path).write_text(json.dumps(content), encoding="utf-8")
        except OSError as error:
            raise ProfileError(
                f"cannot write the profile to {str(path)!r}: {error.strerror or error}"
            ) from error


def load_profile(path: str | Path) -> Profile:
    """Read a profile that `save` wrote; ProfileError for another file."""
    try:
        content = json.loads(Path(path).read_bytes().decode("utf-8"))
    except OSError as error:
        raise ProfileError(
            f"cannot read the profile {str(path)!r}: {error.strerror or error}"
        ) from error
    except ValueError as error:
        raise ProfileError(
            f"{str(path)!r} is not a profile: {error}; write one by bestof profile --keep FILE.json"
        ) from error
    return _from_content(content, str(path))


def _from_content(content: Any, path: str) -> Profile:
    if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
        raise ProfileError(
            f"{path!r} is not a profile of this version; write one by bestof profile --keep "
            "FILE.json"
        )
    try:
        content["spans"] = tuple(Span(**one) for one in content["spans"])
        content["peak"] = None if content["peak"] is None else Peak(**content["peak"])
        content["marks"] = tuple(Mark(**one) for one in content["marks"])
        content["steps"] = tuple(Step(**one) for one in content["steps"])
        for one in fields(Profile):
            if isinstance(content[one.name], list):
                content[one.name] = tuple(content[one.name])
        return Profile(**content)
    except (TypeError, KeyError) as error:
        raise ProfileError(f"{path!r} is a damaged profile: {error}; write it anew") from error
