"""A log of verbose lines: what was executed, what was refused, and what could not be parsed.

A log is read leniently. Lines of other programs are ignored. A line of oneDNN or MKL that cannot be
parsed is counted, and the first few are kept as examples. No content of a file raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bestof.errors import ProfileError
from bestof.escaped import escaped
from bestof.profile.verbose import mkl, onednn
from bestof.profile.verbose.line import Line

# Lines that cannot be parsed are all counted; this many of them are kept.
_SHOWN = 5

# The beginning of every line of oneDNN and MKL. Text before it belongs to other programs.
_PREFIX = re.compile(f"(?=(?:{'|'.join((*onednn.PREFIXES, mkl.PREFIX))})[, ])")

# Colours and other orders to a terminal, as MKL_VERBOSE=2 and loggers write them, also cut ones.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*(?:[@-~]|$)|\][^\x07\x1b]*(?:\x07|\x1b\\|$)|[@-_]|$)")

# A timestamp after the prefix. It is removed, so that equal refusals are listed once.
_STAMP = re.compile(r"(verbose,(?:v\d+,)?)\d+\.\d+,")

# Words of lines of oneDNN without an execution: header, creation of primitives, checks.
_TOLD = ("info", "create", "exec:", "profile_create", "stack", "warn")


@dataclass(slots=True)
class Log:
    """The content of a stream of lines. `foreign` counts the lines of other programs."""

    lines: list[Line] = field(default_factory=list)
    information: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    unknown: int = 0
    examples: list[str] = field(default_factory=list)
    foreign: int = 0
    _fields: tuple[str, ...] = onednn.FIELDS

    def add(self, text: str) -> bool:
        """Read one line. Return whether oneDNN, MKL or bestof wrote it."""
        # Threads and processes may write at the same time. A line then begins inside another one.
        foreign, *own = _PREFIX.split(_without_escapes(text).rstrip("\r\n"))
        self.foreign += bool(foreign.strip()) and not own
        for one in map(escaped, own):
            if mkl.is_mkl(one):
                self._mkl(one)
            else:
                self._onednn(onednn.with_points(one))
        return bool(own)

    def _onednn(self, text: str) -> None:
        words = onednn.words_of(text)
        template = onednn.template_of(words)
        if template is not None:
            self._fields = template
            self.information.append(text)
        elif onednn.is_execution(words):
            self._execution(text, words)
        elif any(word.startswith("dispatch") for word in words[:4]) or ":dispatch" in text:
            self.refusals.append(_STAMP.sub(r"\1", text))
        elif "error" in words[:4]:
            self.errors.append(text)
        elif any(word.startswith(_TOLD) for word in words[:4]):
            self.information.append(text)
        elif "graph" not in words[:3]:
            self._unknown(text)

    def _execution(self, text: str, words: list[str]) -> None:
        fields = self._fields
        try:
            self.lines.append(onednn.parse(text, words, fields))
        except ValueError:
            # A log of several processes may mix versions. So try the common order too.
            try:
                self.lines.append(onednn.parse(text, words, onednn.FIELDS))
            except ValueError:
                self._unknown(text)

    def _mkl(self, text: str) -> None:
        if mkl.is_header(text):
            self.information.append(text)
            return
        try:
            self.lines.append(mkl.parse(text))
        except ValueError:
            self._unknown(text)

    def _unknown(self, text: str) -> None:
        self.unknown += 1
        if len(self.examples) < _SHOWN:
            self.examples.append(text[:200])


def contains_line(text: str) -> bool:
    """Return whether oneDNN, MKL or bestof wrote the text or a part of it."""
    return _PREFIX.search(_without_escapes(text)) is not None


def _without_escapes(text: str) -> str:
    return _ESCAPE.sub("", text) if "\x1b" in text else text


def read_lines(texts: Iterable[str]) -> Log:
    log = Log()
    for text in texts:
        log.add(text)
    return log


def read_log(path: str | Path) -> Log:
    """Read a log file; bytes that are not UTF-8 are replaced.

    Raises ProfileError if the file cannot be opened, is empty, or contains no line of oneDNN or
    MKL.
    """
    try:
        content = Path(path).read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise ProfileError(
            f"cannot read the log {str(path)!r}: {error.strerror or error}"
        ) from error
    log = read_lines(content.splitlines())
    if not content.strip():
        raise ProfileError(f"the log {str(path)!r} is empty; set ONEDNN_VERBOSE=1 for the program")
    if not log.lines and not log.unknown and not log.refusals:
        raise ProfileError(
            f"the log {str(path)!r} contains no executed primitive of oneDNN or MKL in "
            f"{log.foreign} lines; set ONEDNN_VERBOSE=1 for the program"
        )
    return log
