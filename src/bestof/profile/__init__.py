"""Shows where the time of a PyTorch program goes: capture, breakdown, comparison and projection.

Reading logs and profiles needs no PyTorch. It is imported when something is captured or replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bestof.profile.log import Log, read_log
from bestof.profile.profile import Profile, Step, load_profile
from bestof.profile.span import Span
from bestof.profile.timeline.timeline import from_log

if TYPE_CHECKING:
    from bestof.profile.recording.recorder import Recorder

__all__ = ["Log", "Profile", "Span", "Step", "capture", "from_log", "load_profile", "read_log"]


def capture(title: str = "region") -> Recorder:
    """Return a capture for a `with` block. Afterwards, its attribute `profile` holds the
    profile."""
    from bestof.profile.recording.recorder import Recorder  # noqa: PLC0415  imports torch

    return Recorder(title)
