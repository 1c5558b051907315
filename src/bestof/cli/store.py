"""`bestof store`: look after the decisions that are kept."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import time

from bestof.cli.kept import kept
from bestof.errors import InvalidArgument
from bestof.selection.record import Record
from bestof.selection.store.lock_file import export_records, import_records
from bestof.selection.store.protocol import Store
from bestof.view import print_records
from bestof.view.quantity import plural


@dataclass(frozen=True, slots=True)
class Action:
    """One row of the table of what can be done to a store; `arguments` adds those of its own."""

    name: str
    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]
    act: Callable[[Store, argparse.Namespace], int]


def call(argv: Sequence[str]) -> int:
    """Parse, open the store, act."""
    options = _parser().parse_args(argv)
    action: Action = options.action
    store = kept(options.store)
    try:
        return action.act(store, options)
    finally:
        store.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bestof store", description="Look after the decisions that are kept.")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for action in ACTIONS:
        one = actions.add_parser(action.name, help=action.summary, description=f"{action.summary.capitalize()}.")
        one.add_argument("--store", metavar="URL", help="such as sqlite:///PATH; without it, this user's own")
        action.arguments(one)
        one.set_defaults(action=action)
    return parser


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--selector", metavar="NAME", help="of this selector alone")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _show(store: Store, options: argparse.Namespace) -> int:
    records = _records(store, options.selector)
    if options.json:
        print(json.dumps([asdict(record) for record in records], indent=2, ensure_ascii=False))
    else:
        print_records(records, store.url, time())
    return 0


def _clear_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--selector", metavar="NAME", help="of this selector alone")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _clear(store: Store, options: argparse.Namespace) -> int:
    count = len(_records(store, options.selector))
    if count and not options.yes:
        if not sys.stdin.isatty():
            raise InvalidArgument(f"clear would forget {plural(count, 'problem')} of {store.url}; say --yes to do it")
        print(f"Forget {plural(count, 'problem')} of {store.url}? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was changed")
            return 1
    print(f"forgot {plural(store.clear(options.selector), 'problem')} of {store.url}")
    return 0


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="where to; without it, the standard output")


def _export(store: Store, options: argparse.Namespace) -> int:
    records = _records(store, None)
    text = export_records(records).rstrip("\n") + "\n"
    if options.file is None:
        sys.stdout.write(text)
        return 0
    try:
        with open(options.file, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidArgument(f"cannot write {options.file!r}: {error.strerror or error}") from error
    print(f"exported {plural(len(records), 'problem')} to {options.file}")
    return 0


def _import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="what `bestof store export` wrote; - for the standard input")


def _import(store: Store, options: argparse.Namespace) -> int:
    try:
        if options.file == "-":
            text = sys.stdin.read()
        else:
            with open(options.file, encoding="utf-8") as file:
                text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgument(f"cannot read {options.file!r}: {reason}") from error
    records = import_records(text)
    for record in records:
        store.save(record)
    print(f"imported {plural(len(records), 'problem')} into {store.url}")
    return 0


def _records(store: Store, selector: str | None) -> list[Record]:
    return list(store.records(selector))


ACTIONS = (
    Action("show", "list every problem, its decision and its evidence", _show_arguments, _show),
    Action("clear", "forget decisions and their evidence", _clear_arguments, _clear),
    Action("export", "write everything to a file that can be reviewed and shared", _export_arguments, _export),
    Action("import", "take in what was exported", _import_arguments, _import),
)
