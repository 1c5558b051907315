"""A file for a report. The ending of its name gives the format."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from bestof.cli.options import check_writable
from bestof.errors import InvalidArgument
from bestof.selection.reports.report import Report
from bestof.view import render
from bestof.whole_file import write_whole

Format = Literal["text", "json", "html"]

_FORMATS: dict[str, Format] = {".json": "json", ".html": "html", ".txt": "text"}

# A text file has no width. Tables of reports fit into 120 columns without wrapping.
_TEXT_WIDTH = 120


@dataclass(frozen=True, slots=True)
class ReportFile:
    """An absolute path and a format."""

    path: str
    format: Format

    @classmethod
    def at(cls, path: str) -> ReportFile:
        """Return the file of this name.

        Call it before the program runs. An existing file stays as it is until `write`. Raises
        InvalidArgument if no format has this ending, or if the file cannot be written.
        """
        suffix = os.path.splitext(path)[1].lower()
        if suffix not in _FORMATS:
            raise InvalidArgument(
                f"cannot write a report to {path!r}: its name must end in {', '.join(_FORMATS)}"
            )
        absolute = os.path.abspath(path)  # the program may change its directory
        check_writable(path, "a report")
        return cls(absolute, _FORMATS[suffix])

    def write(self, report: Report) -> None:
        """Write the report. Raises OSError if that fails."""
        text = render(report, self.format, width=_TEXT_WIDTH)
        if self.format == "text":
            text += "\n\n" + render(report, width=_TEXT_WIDTH, whole=True)
        write_whole(self.path, text + "\n")
