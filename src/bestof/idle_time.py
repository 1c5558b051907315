"""How long processors have had nothing to do."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress


def idle_seconds(processors: Iterable[int], file: str = "/proc/stat") -> float | None:
    """Return for how long these processors were idle, all together, since the machine started.

    None where the system does not tell: only Linux does, and some sandboxes count nothing. The
    system counts in hundredths of a second.
    """
    idle = {}
    with suppress(OSError, ValueError, IndexError), open(file, "rb") as lines:
        for line in lines:
            name, *ticks = line.split()
            if not name.startswith(b"cpu"):
                break
            if name != b"cpu":  # the sum of all
                idle[int(name[3:])] = int(ticks[3]) + int(ticks[4])  # that waits for a disk too
    ticks_of = [idle.get(one, 0) for one in processors]
    if not ticks_of or not all(ticks_of):
        return None
    return sum(ticks_of) / os.sysconf("SC_CLK_TCK")
