"""Texts that are safe to print."""

from __future__ import annotations


def escaped(text: str) -> str:
    r"""Return the text with each unprintable character written as its escape, such as \x1b.

    A terminal obeys control characters. A lone surrogate cannot be printed at all.
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()
