"""A file that a report is written to, in the format that its name asks for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from bestof.errors import InvalidArgument
from bestof.selection.report import Report
from bestof.view import render

Format = Literal["text", "json", "html"]

_FORMATS: dict[str, Format] = {".json": "json", ".html": "html", ".txt": "text"}

# A text file has no width of its own; 120 columns hold the tables of reports without wrapping.
_TEXT_WIDTH = 120


@dataclass(frozen=True, slots=True)
class ReportFile:
    """An absolute path, and the format of what goes there."""

    path: str
    format: Format

    @classmethod
    def at(cls, path: str) -> ReportFile:
        """The file of this name; InvalidArgument where its suffix is not a format's, or where it cannot be written.

        To be called before the program runs, so that hours of work do not end in a spelling mistake. A file that is
        already there stays as it is until `write`.
        """
        suffix = os.path.splitext(path)[1].lower()
        if suffix not in _FORMATS:
            raise InvalidArgument(
                f"cannot write a report to {path!r}: its name must end in {', '.join(_FORMATS)}"
            )
        absolute = os.path.abspath(path)  # the program may change its directory
        existed = os.path.lexists(absolute)
        try:
            with open(absolute, "a", encoding="utf-8"):
                pass
            if not existed:
                os.unlink(absolute)
        except OSError as error:
            raise InvalidArgument(
                f"cannot write a report to {path!r}: {error.strerror or error}"
            ) from error
        return cls(absolute, _FORMATS[suffix])

    def write(self, report: Report) -> None:
        """Write it; OSError where that failed after all."""
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(render(report, self.format, width=_TEXT_WIDTH) + "\n")
