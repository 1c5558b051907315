"""Parses the verbose lines of oneDNN, of all versions since 1.0.

A `template:` line names the fields of the lines after it. If a log has none (oneDNN before 1.8, or
a log that was cut), the order of fields that all versions share is assumed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bestof.profile.verbose.descriptor import parse_descriptors
from bestof.profile.verbose.line import Line

# The last one is that of bestof's own lines, which have the same form.
PREFIXES = ("onednn_verbose", "dnnl_verbose", "mkldnn_verbose", "bestof_verbose")

FIELDS = (
    *("operation", "engine", "primitive", "implementation", "prop_kind", "memory_descriptors"),
    *("attributes", "auxiliary", "problem_desc", "exec_time"),
)
_TEMPLATE = re.compile(r"(?:prim_)?template:(.*)")
_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?\Z")
_STAMP = re.compile(r"(\w+_verbose,(?:v\d+,)?\d+),(\d+,)")
_FRACTION = re.compile(r"\d+(e[+-]?\d+)?\Z")
# No clock and no call reaches 30,000 years. Sums of such times would not be finite.
MOST_MS = 1e15
# The level of the line, which is printed since 3.2. The template does not name it.
_COMPONENTS = ("primitive", "graph", "ukernel", "common")


def with_points(text: str) -> str:
    """Return a line with the decimal comma of its timestamp as a point.

    Programs that set a locale, such as German, have oneDNN write numbers with commas.
    """
    return _STAMP.sub(r"\1.\2", text, count=1)


def words_of(text: str) -> list[str]:
    """Split a line at its commas and drop the prefix and the version of the format."""
    words = text.rstrip("\n").split(",")[1:]
    return words[1:] if words and re.fullmatch(r"v\d+", words[0]) else words


def template_of(words: Sequence[str]) -> tuple[str, ...] | None:
    """Return the fields that a template line for primitives names, or None for another line."""
    if "graph" in words[:2]:
        return None
    for place, word in enumerate(words[:3]):
        found = _TEMPLATE.match(word)
        if found:
            return (found[1], *words[place + 1 :])
    return None


def is_execution(words: Sequence[str]) -> bool:
    """Return whether the line reports an executed primitive, which `parse` can read."""
    return _operation(words)[1][:1] == ["exec"] and _operation(words)[0] != "graph"


def parse(text: str, words: Sequence[str], fields: Sequence[str]) -> Line:
    """Parse the line of an executed primitive.

    Raises ValueError if it does not have the fields of the template.
    """
    _, rest = _operation(words)
    names = [name for name in fields if name != "timestamp"]
    if not set(FIELDS[1:]) <= set(names):
        raise ValueError(f"the template lacks one of {', '.join(FIELDS[1:])}")
    place = names.index("exec_time")
    if len(rest) == len(names) + 1 and rest[place].isdecimal() and _FRACTION.match(rest[place + 1]):
        rest[place : place + 2] = [f"{rest[place]}.{rest[place + 1]}"]  # a decimal comma
    if len(rest) != len(names):
        raise ValueError(f"expected {len(names)} fields, got {len(rest)}")
    field = dict(zip(names, rest, strict=True))
    if not _NUMBER.match(field["exec_time"]):
        raise ValueError(f"the time must be a number; got {field['exec_time']!r}")
    stamp = next((word for word in words[:2] if _NUMBER.match(word)), None)
    for number in (field["exec_time"], stamp or "0"):
        if float(number) > MOST_MS:
            raise ValueError(f"the time is impossible: {number!r}")
    return Line(
        source="bestof" if text.startswith("bestof") else "onednn",
        primitive=field["primitive"],
        implementation=field["implementation"],
        direction="" if field["prop_kind"] == "undef" else field["prop_kind"],
        descriptors=parse_descriptors(field["memory_descriptors"]),
        attributes=field["attributes"],
        auxiliary=field["auxiliary"],
        problem=field["problem_desc"],
        seconds=float(field["exec_time"]) / 1e3,
        began=None if stamp is None else float(stamp) / 1e3,
        engine=field["engine"],
        text=text.rstrip("\n"),
    )


def _operation(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the component, and the words from the operation on.

    A timestamp and the component come before the operation.
    """
    rest = list(words)
    component = ""
    if rest and _NUMBER.match(rest[0]):
        rest.pop(0)
    if rest and rest[0] in _COMPONENTS:
        component = rest.pop(0)
    return component, rest
