"""The findings of `bestof doctor`: the traps that were found, then those that were not."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from bestof.view.printable import printable
from bestof.view.quantity import plural

_PIPE_WIDTH = 100
_WORDS = {True: "!", False: "-", None: "?"}


def print_findings(findings: Sequence[Mapping[str, Any]]) -> None:
    """Print the findings: the dearest traps first. Colours only on a terminal without NO_COLOR."""
    lines = list(finding_lines(findings, _width()))
    if find_spec("rich") is None or not sys.stdout.isatty():
        print("\n".join(lines))
        return
    from rich.text import Text  # noqa: PLC0415 - rich is optional, and slow to import

    from bestof.view.text import terminal  # noqa: PLC0415 - as above

    console = terminal()
    for line in lines:
        style = "bold red" if line.startswith("!") else ""
        style = "green" if line.startswith("  cure:") else style
        console.print(Text(line, style=style or "default"), soft_wrap=True)


def finding_lines(findings: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    """Yield lines of at most `width` columns, but for words that are longer."""
    caught = [one for one in findings if one["caught"]]
    yield f"{plural(len(caught), 'trap')} found, of {len(findings)} that were looked for"
    for one in sorted(caught, key=lambda one: -(one["factor"] or 0.0)):
        yield ""
        yield f"! {printable(one['trap'])}: {_cost(one)}"
        yield from _wrapped(one["seen"], "  ", width)
        yield from _wrapped(one["cure"], "  cure: ", width)
    rest = [one for one in findings if not one["caught"]]
    if rest:
        yield ""
    for one in rest:
        yield from _wrapped(one["seen"], f"{_WORDS[one['caught']]} {one['trap']}: ", width)


def _cost(finding: Mapping[str, Any]) -> str:
    factor = finding["factor"]
    if factor is None:
        return "its cost a step is unknown"
    return f"{printable(finding['of'])} are {factor:.2f} times as slow"


def _wrapped(text: str, first: str, width: int) -> list[str]:
    return textwrap.wrap(
        printable(text, None),
        max(20, width),
        initial_indent=first,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
