"""Convert text so that stores can keep it."""

from __future__ import annotations


def storable(text: str) -> str:
    """Return the text with lone surrogates written as escapes, because UTF-8 cannot hold them.

    File names bring them into error messages.
    """
    return text if is_storable(text) else text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_storable(text: str) -> bool:
    """Return whether the text has no lone surrogate."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
