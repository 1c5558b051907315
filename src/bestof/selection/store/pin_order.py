"""The order of pins: in a list, and by how closely they match a problem on a host."""

from __future__ import annotations

from collections.abc import Iterable

from bestof.selection.record import Pin


def sorted_pins(pins: Iterable[Pin]) -> list[Pin]:
    """Return pins sorted by selector, problem and host. None comes before every text."""
    return sorted(
        pins,
        key=lambda pin: (pin.selector, *_place(pin.problem), *_place(pin.host)),
    )


def _place(text: str | None) -> tuple[bool, str]:
    return (text is not None, text or "")


def closest(pins: Iterable[Pin], problem: str | None, host: str | None) -> str | None:
    """Return the alternative of the closest pin, or None.

    `pins` are those of one selector.
    """
    found = {(pin.problem, pin.host): pin.alternative for pin in pins}
    for key in ((problem, host), (problem, None), (None, host), (None, None)):
        if key in found:
            return found[key]
    return None
