"""`bestof store pin` and `unpin`: orders to take an alternative without measuring."""

from __future__ import annotations

import argparse

from bestof.cli.store_action import Action
from bestof.errors import StoreError
from bestof.selection.record import Pin
from bestof.selection.store.protocol import Store


def pin_text(pin: Pin) -> str:
    """A pin in words."""
    return f"{pin.selector} = {pin.alternative}, {_where(pin.problem, pin.host)}"


def _where(problem: str | None, host: str | None) -> str:
    return f"{'every problem' if problem is None else problem}, {'every host' if host is None else f'host {host}'}"


def _unpin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "selector", metavar="SELECTOR", help="its name, as `bestof store show` prints it"
    )
    _add_place(parser)


def _pin_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "selector", metavar="SELECTOR", help="its name, as `bestof store show` prints it"
    )
    parser.add_argument("alternative", metavar="ALTERNATIVE", help="what to take")
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
    return 0


def _unpin(store: Store, options: argparse.Namespace) -> int:
    place = _where(options.problem, options.host)
    if not store.unpin(options.selector, options.problem, options.host):
        raise StoreError(
            f"{options.selector} has no pin for {place} in {store.url}; `bestof store show` lists pins"
        )
    print(f"took back the pin of {options.selector} for {place}")
    return 0


PIN = Action(
    "pin", "take one alternative from the next run on, without measuring", _pin_arguments, _pin
)
UNPIN = Action(
    "unpin", "take back the pin that was given with these very words", _unpin_arguments, _unpin
)
