"""Commands that start processes end them, too, when they are terminated."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130
"""The exit status of a shell's command that an interrupt has ended."""


@contextmanager
def interrupted_by_termination() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt in this context, as SIGINT does.

    A signal that is ignored, such as SIGHUP under `nohup`, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        yield
        return
    changed = [
        one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL
    ]
    for one in changed:
        signal.signal(one, signal.default_int_handler)
    try:
        yield
    finally:
        for one in changed:
            signal.signal(one, signal.SIG_DFL)
