"""Make copies of selectors, for `copy`, `copy.deepcopy` and `pickle`."""

from __future__ import annotations

from typing import Any, TypeVar

from bestof.selection.teaching import Teaching, learn

# Attributes that a program has set, in the dictionary of a selector and in its slots.
Beside = tuple[dict[str, Any], dict[str, Any]]

Made = TypeVar("Made")


def own_slots(kind: type, base: type) -> list[str]:
    """Return the slots that subclasses of `base` add, by the names under which they are stored."""
    names = []
    for owner in kind.__mro__:
        slots = () if owner in base.__mro__ else owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{owner.__name__.lstrip('_')}{name}" if private else name)
    return names


def remade(
    kind: type[Made],
    base: Any,
    given: dict[str, Any],
    beside: Beside,
    taught: list[Teaching],
) -> Made:
    """Return a new selector of a class; `base` is the class that takes the arguments `given`."""
    return fill(kind.__new__(kind), base, given, beside, taught)


def fill(
    made: Made, base: Any, given: dict[str, Any], beside: Beside, taught: list[Teaching]
) -> Made:
    """Initialise a selector from arguments, attributes and decisions, and return it."""
    base.__init__(made, **given)
    attributes, slots = beside
    vars(made).update(attributes)
    for name, value in slots.items():
        setattr(made, name, value)
    learn(vars(made)["_knowledge"], taught)
    return made
