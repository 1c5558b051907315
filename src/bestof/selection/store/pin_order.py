"""The order of pins: in a list, and by how closely they match a problem on a host.

Each place (selector, problem and host) has at most one pin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bestof.selection.store.record import Pin


def sorted_pins(pins: Iterable[Pin]) -> list[Pin]:
    """Return pins sorted by selector, problem and host. None comes before every text."""
    return sorted(
        pins,
        key=lambda pin: (pin.selector, *_place(pin.problem), *_place(pin.host)),
    )


def without_repetitions(pins: Iterable[Pin], tell: Callable[[Pin], object]) -> list[Pin]:
    """Return the first pin of each place; `tell` is called with the others.

    Only a damaged database has others: if two were exported, no store would import the file.
    """
    found: dict[tuple[str, str | None, str | None], Pin] = {}
    for pin in pins:
        if found.setdefault((pin.selector, pin.problem, pin.host), pin) is not pin:
            tell(pin)
    return list(found.values())


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
