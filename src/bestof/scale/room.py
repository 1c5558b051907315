"""Refuses what does not fit in memory."""

from __future__ import annotations

from bestof.recipe.contestant import ScriptFailed

NOT_TRIED = "not tried"
"""How the reason begins if a setting was refused before it ran."""


def check_room(needed: int, free: int | None) -> None:
    """Raise ScriptFailed if `needed` bytes are more than `free`; None stands for unknown."""
    if free is not None and needed > free:
        raise ScriptFailed(
            f"{NOT_TRIED}: it needs about {needed / 2**20:,.0f} MiB, "
            f"and {free / 2**20:,.0f} MiB are free"
        )
