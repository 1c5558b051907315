"""The circumstances of a disqualification. They are stored with its reason.

An error depends on its call: the machine was out of memory, gradients were off, or the default
device was another one. A later process may succeed, so it tries the alternative again. So it does
after an error of a function that is asked about the alternative: the version of the alternative
does not tell whether that function has been mended. A wrong result disqualifies the alternative
until its version changes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timezone

from bestof.selection.interrupts import reraise_from_outside

_RAISED = (
    "raised ",
    *(f"{asked} raised " for asked in ("supports", "unpromising", "estimate", "hopeless")),
    "wrong result: check raised ",
)


def told(error: BaseException) -> str:
    """Return the text of an error."""
    return f"{type(error).__name__}: {error}"


def raised(error: BaseException) -> str:
    """Return the reason of a disqualification by an error, without the circumstances."""
    return _RAISED[0] + told(error)


def may_pass(reason: str) -> bool:
    """Return whether the stored reason may not hold in another process.

    An error may not hold there. A wrong result does.
    """
    return reason.startswith(_RAISED)


def circumstances() -> str:
    """Return the circumstances of a failing call: the date, the thread, PyTorch's modes."""
    now = datetime.now(timezone.utc)
    return ", ".join((f"on {now:%Y-%m-%d %H:%M} UTC", *_modes()))


def _modes() -> Iterator[str]:
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        yield f"in thread {thread.name}"
    torch = sys.modules.get(
        "torch"
    )  # asked only if the program has imported it: this package needs no PyTorch
    if torch is None:
        return
    try:
        if torch.is_inference_mode_enabled():
            yield "in inference mode"
        elif not torch.is_grad_enabled():
            yield "without gradients"
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            yield "under autocast"
        device = torch.get_default_device()
        if device.type != "cpu":
            yield f"under the default device {device}"
    except Exception:  # PyTorch is half imported, or another version: these are only words
        reraise_from_outside()
        return
