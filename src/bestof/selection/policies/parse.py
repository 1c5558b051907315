"""Make a policy from text, for command lines and settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from bestof.errors import InvalidArgument
from bestof.selection.policies.fixed import Fixed
from bestof.selection.policies.policy import Policy, searches_at_any_time
from bestof.selection.policies.race import Race
from bestof.selection.policies.rounds import Rounds
from bestof.selection.policies.window import Window


def _settings(kind: type[Rounds] | type[Race], text: str) -> Policy:
    """Make a policy from `field=number,field=number`. Integer fields take integers."""
    known = {
        field.name: int if field.type == "int" else float
        for field in fields(kind)
        if field.name != "handicaps"
    }
    arguments: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in known:
            raise InvalidArgument(
                f"{kind.__name__}: expected one of {', '.join(known)}, got {name!r} in {text!r}"
            )
        try:
            arguments[name] = known[name](value)
        except ValueError:
            expected = "an integer" if known[name] is int else "a number"
            raise InvalidArgument(
                f"{kind.__name__}: {name}: expected {expected}, got {value!r}"
            ) from None
    return kind(**arguments)  # type: ignore[arg-type]  # values have the types of the defaults


def _window(text: str) -> Policy:
    """Make a window from `1-10`, or from `1-10,POLICY` with the policy for the steps inside."""
    steps, _, inner = text.partition(",")
    matched = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", steps)
    if not matched:
        raise InvalidArgument(f"Window: expected START-STOP, two numbers of steps, got {text!r}")
    start, stop = int(matched[1]), int(matched[2])
    if not inner:
        return Window(start, stop)
    policy = parse_policy(inner)
    if not searches_at_any_time(policy):
        raise InvalidArgument(f"Window: expected rounds or race inside the window, got {inner!r}")
    return Window(start, stop, policy)


def _fixed(text: str) -> Policy:
    if not text:
        raise InvalidArgument(
            "Fixed: name: expected the name of an alternative, as in 'fixed:NAME', got ''"
        )
    return Fixed(text)


POLICIES: dict[str, Callable[[str], Policy]] = {
    "race": lambda text: _settings(Race, text),
    "rounds": lambda text: _settings(Rounds, text),
    "window": _window,
    "fixed": _fixed,
}


def parse_policy(text: str) -> Policy:
    """Return the policy that `text` describes: a name in POLICIES, a colon, and its arguments.

    Examples: `race`, `rounds:rounds=5,pruning_speedup=4`, `window:1-10`,
    `window:1-10,rounds:rounds=3`, `fixed:NAME`.

    Raises InvalidArgument. For an unknown name, the message lists the known ones.
    """
    name, _, rest = text.partition(":")
    make = POLICIES.get(name.strip())
    if make is None:
        raise InvalidArgument(f"policy: expected one of {', '.join(POLICIES)}, got {text!r}")
    return make(rest)


def parse_any_policy(policy: Any) -> Policy:
    """Return the policy that an object or a text stands for.

    Raises InvalidArgument for anything else.
    """
    if isinstance(policy, str):
        return parse_policy(policy)
    if isinstance(policy, type) or not callable(getattr(policy, "start", None)):
        raise InvalidArgument(f"policy: expected a policy or its text; got {policy!r}")
    return policy  # type: ignore[no-any-return]  # Any until here: it came from the user
