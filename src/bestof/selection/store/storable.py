"""Text as stores keep it."""

from __future__ import annotations


def storable(text: str) -> str:
    """Return the text with halves of surrogate pairs written as escapes: UTF-8 cannot hold them.

    Names of files bring them into error messages.
    """
    return text if is_storable(text) else text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_storable(text: str) -> bool:
    """Return whether every character is one."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
