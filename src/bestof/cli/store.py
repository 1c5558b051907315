"""`bestof store`: show and change the decisions that are kept."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from time import time

from bestof.cli.kept import kept
from bestof.cli.options import add_json, add_limit, limit_of, parser_of
from bestof.cli.store_action import Action
from bestof.cli.store_explain import EXPLAIN
from bestof.cli.store_lock_file import EXPORT, IMPORT, MERGE
from bestof.cli.store_pin import PIN, UNPIN, pin_text
from bestof.cli.store_share import PULL, PUSH
from bestof.errors import InvalidArgument
from bestof.selection.store.protocol import Store
from bestof.selection.store.record import Pin, Record
from bestof.view import print_records
from bestof.view.printable import printable_json
from bestof.view.quantity import plural


def call(argv: Sequence[str]) -> int:
    """Parse, open the store, and run the action."""
    options = make_parser().parse_args(argv)
    action: Action = options.action
    store = kept(options.store)
    try:
        return action.act(store, options)
    finally:
        store.close()


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the arguments."""
    parser = parser_of(
        "store",
        description="Show and change the decisions that are kept.",
        epilog="  bestof store show\n\n`bestof store ACTION --help` tells more.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for action in ACTIONS:
        one = actions.add_parser(
            action.name,
            help=action.summary,
            description=f"{action.summary.capitalize()}.",
            epilog=f"  bestof store {action.name} {action.example}".rstrip(),
        )
        one.add_argument(
            "--store",
            metavar="URL",
            help="such as sqlite:///PATH or postgresql://... (default: the user's store)",
        )
        action.arguments(one)
        one.set_defaults(action=action)
    return parser


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--selector", metavar="NAME", help="only this selector")
    add_limit(parser)
    add_json(parser, "JSON")


def _show(store: Store, options: argparse.Namespace) -> int:
    most = limit_of(options)
    records, pins = _chosen(store, options.selector)
    if options.json:
        content = {
            "records": [record.to_dict() for record in records],
            "pins": [asdict(pin) for pin in pins],
        }
        print(printable_json(json.dumps(content, indent=2, ensure_ascii=False)))
        return 0
    print_records(records, store.url, time(), most)
    for pin in pins:
        print(f"pinned: {pin_text(pin)}")
    return 0


def _chosen(store: Store, selector: str | None) -> tuple[list[Record], list[Pin]]:
    """Return all records and pins, or those of one selector."""
    records, pins = store.contents()
    return (
        [record for record in records if selector in (None, record.selector)],
        [pin for pin in pins if selector in (None, pin.selector)],
    )


def _clear_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--selector", metavar="NAME", help="only this selector")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _clear(store: Store, options: argparse.Namespace) -> int:
    count = len(_chosen(store, options.selector)[0])
    if count and not options.yes:
        if not sys.stdin.isatty():
            raise InvalidArgument(
                f"clear would remove {plural(count, 'problem')} from {store.url}; pass --yes to do "
                "it"
            )
        print(
            f"Remove {plural(count, 'problem')} from {store.url}? [y/N] ",
            end="",
            file=sys.stderr,
            flush=True,
        )
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was changed")
            return 1
    print(f"removed {plural(store.clear(options.selector), 'problem')} from {store.url}")
    return 0


ACTIONS = (
    Action(
        "show",
        "list every problem, its decision and its evidence, and the pins",
        _show_arguments,
        _show,
        "--selector 'convolution forward'",
    ),
    EXPLAIN,
    PIN,
    UNPIN,
    EXPORT,
    IMPORT,
    MERGE,
    PUSH,
    PULL,
    Action(
        "clear",
        "remove decisions and their evidence, but no pin",
        _clear_arguments,
        _clear,
        "--selector 'convolution forward'",
    ),
)
