"""`bestof store push` and `pull`: decisions and pins to and from another store, such as a shared
one."""

from __future__ import annotations

import argparse

from bestof.cli.kept import named
from bestof.cli.store_action import Action
from bestof.errors import InvalidArgument
from bestof.selection.store.protocol import Store
from bestof.view.quantity import plural


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", metavar="URL", help="the other store, such as postgresql://USER@HOST/DATABASE"
    )


def _push(store: Store, options: argparse.Namespace) -> int:
    other = _other(options.url)
    try:
        return _merge(store, other, "pushed")
    finally:
        other.close()


def _pull(store: Store, options: argparse.Namespace) -> int:
    other = _other(options.url)
    try:
        return _merge(other, store, "pulled")
    finally:
        other.close()


def _merge(source: Store, target: Store, verb: str) -> int:
    """Merge one store into another, in one transaction. Pins of the target stay."""
    records, pins = source.contents()
    stayed = target.unite(records, pins, theirs=False)
    told = f"; {plural(stayed, 'pin')} of that store stayed" if stayed else ""
    print(
        f"{verb} {plural(len(records), 'problem')} and {plural(len(pins) - stayed, 'pin')} "
        f"into {target.url}{told}"
    )
    return 0


def _other(url: str) -> Store:
    store = named(url, "URL")
    if store is None:
        raise InvalidArgument("URL: 'off' is no store; name another one")
    return store


PUSH = Action(
    "push",
    "merge the decisions into another store; its pins win",
    _arguments,
    _push,
    "postgresql://host/decisions",
)
PULL = Action(
    "pull",
    "merge another store into this one; this one's pins win",
    _arguments,
    _pull,
    "postgresql://host/decisions",
)
