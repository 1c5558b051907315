"""Rows that installed packages register, by entry points of the group `bestof.alternatives`."""

from __future__ import annotations

import threading

from bestof.selection.notice import warn
from bestof.selection.outside import reraise_from_outside

GROUP = "bestof.alternatives"


class _State:
    lock = threading.Lock()
    is_loaded = False


def load_entry_points() -> None:
    """Call the function of each entry point, which registers rows. Only the first call does so.

    One that fails is told in one line, and left out.
    """
    with _State.lock:
        if _State.is_loaded:
            return
        _State.is_loaded = True
    from importlib.metadata import entry_points  # noqa: PLC0415 - it is slow to import

    for one in entry_points(group=GROUP):
        try:
            one.load()()
        except Exception as error:
            reraise_from_outside()
            package = "" if one.dist is None else f" of {one.dist.name}"
            warn(
                f"the entry point {one.name} = {one.value}{package} in the group {GROUP} was left "
                f"out: {type(error).__name__}: {error}"
            )
