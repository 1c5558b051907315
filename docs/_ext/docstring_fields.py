"""Shows what docstrings say of parameters as lists of parameters.

The docstrings of bestof are plain text. A paragraph may list parameters, or keys, each as
`name: text` or `first, second (10): text`, with further lines indented. Sphinx would show that as
one paragraph.
"""

from __future__ import annotations

import re
from typing import Any

_NAME = r"[a-z_]\w*(?: \([^)]*\))?"
_FIELD = re.compile(rf"^({_NAME}(?:, {_NAME})*): (.*)$")
# Magnitudes, such as |x|, where reStructuredText would look for a substitution.
_BAR = re.compile(r"(?<!`)\|")


def fields(lines: list[str]) -> list[str]:
    """Return the lines of a docstring with its parameters as lists of reStructuredText.

    An indented block below a line with a colon at its end, such as a formula, stays as it is.
    """
    result: list[str] = []
    inside = is_block = False
    for line in lines:
        is_indented = line.startswith("    ")
        if is_block and is_indented:
            result.append(line)
            continue
        if is_block and line.strip():
            result.append("")
        is_block = is_indented and not inside and bool(result) and result[-1].endswith(":")
        if is_block:
            result[-1] += ":"
            result += ["", line]
            continue
        text = _BAR.sub(r"\\|", line)
        match = _FIELD.match(text)
        if match:
            if not inside and result and result[-1].strip():
                result.append("")
            names = re.sub(r"([a-z_]\w*)(?=,| \(|$)", r"``\1``", match[1])
            result.append(f"- {names}: {match[2]}")
            inside = True
        elif inside and is_indented:
            result.append("  " + text.strip())
        else:
            if inside and text.strip():  # what goes on below the list begins a paragraph
                result.append("")
            inside = False
            result.append(text)
    return result


def _process(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = fields(lines)


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True}
