"""What the doctor says of one trap."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One trap: whether this machine or program is in it, what was seen, and the cure.

    caught: None if it was not found out.
    factor: the time as it is over the time with the cure, as measured here; None if not measured.
    of: what the factor is about: steps of the program, or operations that it may have.
    seen: what was seen, in one sentence with numbers. cure: the line that mends it; empty if none
        is needed.
    """

    trap: str
    caught: bool | None
    factor: float | None
    seen: str
    cure: str = ""
    of: str = "steps"
