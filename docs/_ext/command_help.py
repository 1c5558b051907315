"""The directive `command-help`: what a command of bestof prints for --help."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

_ENVIRONMENT = {"COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb"}


def help_of(words: list[str]) -> str:
    """Return the help of a command, such as ["store", "pin"]."""
    done = subprocess.run(
        [sys.executable, "-m", "bestof", *words, "--help"],
        env={**os.environ, **_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


class CommandHelp(SphinxDirective):
    """The words of a command behind `bestof`, such as `.. command-help:: store pin`."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        text = help_of(self.arguments[0].split())
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": True}
