"""`bestof store pin` and `unpin`: orders to take an alternative without measuring."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bestof.cli.store_action import Action
from bestof.errors import StoreError
from bestof.selection.store.protocol import Store
from bestof.selection.store.record import Pin, Record
from bestof.view.printable import printable

_NAMES_SHOWN = 8


def pin_text(pin: Pin) -> str:
    """Return a pin in words that any terminal can show."""
    selector, alternative = printable(pin.selector), printable(pin.alternative)
    return f"{selector} = {alternative}, {_where(pin.problem, pin.host)}"


def _where(problem: str | None, host: str | None) -> str:
    problems = "every problem" if problem is None else printable(problem)
    return f"{problems}, {'every host' if host is None else f'host {printable(host)}'}"


def unmet(pin: Pin, records: Sequence[Record]) -> str | None:
    """Return why no selector in the store can obey the pin, or None if one can."""
    own = [record for record in records if record.selector == pin.selector]
    if not own:
        known = sorted({record.selector for record in records})
        return f"no selector of this name is in the store; it has {_listed(known)}"
    alternatives = {item.alternative for record in own for item in record.evidence}
    if pin.alternative not in alternatives:
        return (
            f"no alternative of this name is in the store; it has {_listed(sorted(alternatives))}"
        )
    if pin.problem is not None and all(record.problem != pin.problem for record in own):
        return "this problem is not in the store; `bestof store show` lists them"
    if pin.host is not None and all(record.host != pin.host for record in own):
        return "this host is not in the store; `bestof store explain` names them"
    return None


def _listed(names: Sequence[str]) -> str:
    shown = [printable(name) for name in names[:_NAMES_SHOWN]]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(shown) + more if shown else "none yet"


def _unpin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "selector", metavar="SELECTOR", help="its name, as `bestof store show` prints it"
    )
    _add_place(parser)


def _pin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "selector", metavar="SELECTOR", help="its name, as `bestof store show` prints it"
    )
    parser.add_argument("alternative", metavar="ALTERNATIVE", help="the alternative to take")
    _add_place(parser)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--problem",
        metavar="TEXT",
        help="as `bestof store show` prints it; without it, every problem",
    )
    parser.add_argument(
        "--host", metavar="TEXT", help="as `bestof store explain` prints it; without it, every host"
    )


def _pin(store: Store, options: argparse.Namespace) -> int:
    pin = Pin(options.selector, options.alternative, options.problem, options.host)
    store.pin(pin.selector, pin.alternative, pin.problem, pin.host)
    print(f"pinned {pin_text(pin)}")
    reason = unmet(pin, store.records())
    if reason is not None:
        print(f"bestof: this pin has no effect so far: {reason}", file=sys.stderr)
    return 0


def _unpin(store: Store, options: argparse.Namespace) -> int:
    place = _where(options.problem, options.host)
    if not store.unpin(options.selector, options.problem, options.host):
        raise StoreError(
            f"{printable(options.selector)} has no pin for {place} in {store.url}; "
            f"`bestof store show` lists pins"
        )
    print(f"removed the pin of {printable(options.selector)} for {place}")
    return 0


PIN = Action(
    "pin",
    "take one alternative from the next run on, without measuring",
    _pin_arguments,
    _pin,
    "'convolution forward' 'as is'",
)
UNPIN = Action(
    "unpin",
    "remove the pin that was given with the same words",
    _unpin_arguments,
    _unpin,
    "'convolution forward'",
)
