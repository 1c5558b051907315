"""`bestof store export`, `import` and `merge`: decisions and pins as a file to review and share."""

from __future__ import annotations

import argparse
import sys

from bestof.cli.store_action import Action
from bestof.errors import InvalidArgument
from bestof.selection.store.lock_file import (
    export_records,
    import_pins,
    import_records,
    read_lock_file,
)
from bestof.selection.store.protocol import Store
from bestof.view.quantity import plural
from bestof.whole_file import write_whole


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help="the file to write (default: the standard output)"
    )


def _export(store: Store, options: argparse.Namespace) -> int:
    records, pins = store.contents()
    text = export_records(records, pins)
    if options.file is None:
        sys.stdout.write(text)
        return 0
    try:
        write_whole(options.file, text)
    except OSError as error:
        raise InvalidArgument(
            f"cannot write {options.file!r}: {error.strerror or error}"
        ) from error
    print(
        f"exported {plural(len(records), 'problem')} and {plural(len(pins), 'pin')} to "
        f"{options.file}"
    )
    return 0


def _file_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a file that `bestof store export` wrote; - for the standard input",
    )


def _import(store: Store, options: argparse.Namespace) -> int:
    return _take_in(store, options.file, theirs=True)


def _merge(store: Store, options: argparse.Namespace) -> int:
    return _take_in(store, options.file, theirs=False)


def _take_in(store: Store, path: str, *, theirs: bool) -> int:
    """Merge the file into the store in one transaction.

    If both have a pin for the same place, `theirs` says whether the file's pin stays.
    """
    text = sys.stdin.read() if path == "-" else read_lock_file(path)
    records, pins = import_records(text), import_pins(text)
    stayed = store.unite(records, pins, theirs=theirs)
    told = f"; {plural(stayed, 'pin')} of the store won over the file's" if stayed else ""
    verb = "imported" if theirs else "merged"
    print(
        f"{verb} {plural(len(records), 'problem')} and {plural(len(pins) - stayed, 'pin')} "
        f"into {store.url}{told}"
    )
    return 0


EXPORT = Action(
    "export",
    "write evidence, decisions and pins to a file for review",
    _export_arguments,
    _export,
    "decisions.json",
)
IMPORT = Action(
    "import",
    "merge a file into the store; its pins win over the store's",
    _file_arguments,
    _import,
    "decisions.json",
)
MERGE = Action(
    "merge",
    "merge a file into the store; the store's pins win",
    _file_arguments,
    _merge,
    "decisions.json",
)
