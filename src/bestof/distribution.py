"""The name and version under which pip knows this package.

The distribution is not called `bestof`: on the Python Package Index that name belongs to another
project. Every message that says what to install takes its words from here.
"""

from __future__ import annotations

NAME = "bestof-select"
VERSION = "0.1.0"


def install(extra: str) -> str:
    """Return the command that installs this package with one of its extras."""
    return f"pip install '{NAME}[{extra}]'"
