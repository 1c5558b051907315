"""List suspects: the time at stake, the reason, and the remedy of each."""

from __future__ import annotations

from collections.abc import Sequence

from bestof.profile.suspect import Suspect


def suspect_lines(title: str, suspects: Sequence[Suspect]) -> list[str]:
    """Return the lines of a list of suspects, or no lines for an empty list."""
    if not suspects:
        return []
    lines = ["", f"{title}:"]
    for one in suspects:
        lines.append(f"  {one.name}: {one.seconds * 1e3:.2f} ms a step")
        lines.append(f"    {one.reason}")
        lines.append(f"    try: {one.remedy}")
    return lines
