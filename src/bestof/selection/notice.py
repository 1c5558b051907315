"""Give warnings that point at the user's line, however deep inside bestof they arise."""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType
from typing import Any

from bestof.errors import BestofWarning

_PACKAGE = __name__.partition(".")[0]
_PACKAGES = {_PACKAGE, f"{_PACKAGE}_autoload"}
_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_registry: dict[Any, Any] = {}  # of warnings without a line
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
    user, the warning points at the library's line; if there is none either, at no line. So no
    warning shows a line of bestof.
    """
    level, frame = 1, sys._getframe(0)
    library: int | None = None
    while True:
        if not _is_ours(frame):
            if not frame.f_code.co_filename.startswith(_INSTALLED):
                break
            library = library or level
        if frame.f_back is None:
            if library is None:
                warnings.warn_explicit(
                    message, BestofWarning, f"<{_PACKAGE}>", 1, _PACKAGE, _registry
                )
                return
            level = library
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
    """Return whether a frame runs bestof's code: a module, or the program that calls the command.

    The module of `python -m bestof` and the program have the name `__main__`.
    """
    name, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
    if name.partition(".")[0] in _PACKAGES or file.startswith(_FOLDER):
        return True
    program = os.path.splitext(os.path.basename(file))[0]
    return name == "__main__" and program == _PACKAGE
