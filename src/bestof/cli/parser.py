"""The parser of every command: its help fits the terminal, and its errors tell the next step."""

from __future__ import annotations

import argparse
import re
import textwrap
from difflib import get_close_matches
from typing import Any, NoReturn

_ROW = re.compile(r" +\S+ {2,}(?=\S)")  # a name, and the space before what it means
_TERM = re.compile(r"[\w -]{1,20}: ")
_UNKNOWN = re.compile(r"unrecognized arguments: (--[\w-]+)")


class Help(argparse.HelpFormatter):
    """Keeps the lines of descriptions and epilogs as they are written, if they fit the terminal.

    Else paragraphs are wrapped. An indented line is a row or an example: a row is wrapped below its
    second column, and an example stays whole, because readers paste it.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines()
        if all(len(line) <= width for line in lines):
            return textwrap.indent(text, indent)
        pieces: list[str] = []
        continues = False
        for line in lines:
            alone = not line or line.startswith(" ")
            if alone or not continues or _TERM.match(line):
                pieces.append(line)
            else:
                pieces[-1] += f" {line}"
            continues = not alone
        return textwrap.indent("\n".join(_wrapped(piece, width) for piece in pieces), indent)


def _wrapped(piece: str, width: int) -> str:
    row = _ROW.match(piece)
    if piece.startswith(" ") and row is None:
        return piece
    below = " " * (0 if row is None else row.end())
    return textwrap.fill(
        piece, width, subsequent_indent=below, break_long_words=False, break_on_hyphens=False
    )


class Parser(argparse.ArgumentParser):
    """A parser whose errors end with what to do next."""

    def __init__(self, **more: Any) -> None:
        more.setdefault("formatter_class", Help)
        super().__init__(**more)

    def error(self, message: str) -> NoReturn:
        unknown = _UNKNOWN.match(message)
        close = get_close_matches(unknown[1], self._option_string_actions) if unknown else []
        asked = f"; did you mean {close[0]}?" if close else ";"
        super().error(f"{message}{asked} `{self.prog} --help` tells more")
