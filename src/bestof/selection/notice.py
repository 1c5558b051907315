"""Give warnings that point at the user's line, however deep inside bestof they arise."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType

from bestof.errors import BestofWarning

_PACKAGE = __name__.partition(".")[0]
_INSTALLED = (
    "<frozen ",
    os.path.dirname(os.__file__) + os.sep,
    *(
        folder + os.sep
        for folder in sys.path
        if folder.endswith(("site-packages", "dist-packages"))
    ),
)


def warn(message: str) -> None:
    """Give a BestofWarning for the innermost line outside of bestof and of installed libraries.

    A library may stand between the two, as the layers of PyTorch do. If there is no line of the
    user, the warning points at the library's line.
    """
    level, frame = 1, sys._getframe(0)
    library: int | None = None
    while True:
        if not _is_ours(frame):
            if not frame.f_code.co_filename.startswith(_INSTALLED):
                break
            library = library or level
        if frame.f_back is None:
            level = library or level
            break
        frame = frame.f_back
        level += 1
    warnings.warn(message, BestofWarning, stacklevel=level)


def warn_of_all(messages: list[str]) -> None:
    """Give these warnings, the oldest first, and take them out of the list."""
    while messages:
        try:
            message = messages.pop(0)
        except IndexError:  # without the GIL, another thread may have given it since
            return
        warn(message)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE
